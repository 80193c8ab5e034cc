# One interface target carries what every C++ target of aiacc is compiled with.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
# No -march=native: kernels choose their vector width at run time.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -DNDEBUG")
if(AIACC_SANITIZE)
  # Half the time to compile, for tests that take no longer; reports need lines and no more.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-Og -g1")
endif()

set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17 CACHE STRING "17, or 20 to check that the core is clean there too")
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# No path of the build machine may end up in a library: what it needs is loaded by name.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_library(aiacc_flags INTERFACE)
target_include_directories(aiacc_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(aiacc_flags INTERFACE -Wall -Wextra -Wshadow
                       $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
# Errors name source files as the tree does, wherever it was built.
target_compile_options(aiacc_flags INTERFACE -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
# Sanitizers make GCC warn about code that is fine without them; the plain build is the one to judge.
if(AIACC_WERROR AND NOT AIACC_SANITIZE)
  target_compile_options(aiacc_flags INTERFACE -Werror)
endif()
if(AIACC_SANITIZE)
  set(AIACC_SANITIZE_FLAGS
      -fsanitize=${AIACC_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(aiacc_flags INTERFACE ${AIACC_SANITIZE_FLAGS})
  target_compile_options(aiacc_flags INTERFACE -Wno-maybe-uninitialized)
  target_link_options(aiacc_flags INTERFACE ${AIACC_SANITIZE_FLAGS})
endif()

# ccache, where it is there and nobody has named another launcher. What a precompiled header defines
# is in its hash; neither the folder of the tree nor times of files matter.
find_program(AIACC_CCACHE ccache)
mark_as_advanced(AIACC_CCACHE)
if(AIACC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${AIACC_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache asks for it
  endif()
endif()

# Much of the time to compile is theirs: once, in a precompiled header.
set(AIACC_STD_HEADERS
  <algorithm> <chrono> <condition_variable> <functional> <map> <memory> <mutex> <optional> <string>
  <thread> <vector>)

# A library that is loaded by path: written to AIACC_OUTPUT_DIR, exports only what its map names.
function(aiacc_plugin target exports)
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${AIACC_OUTPUT_DIR}
    LINK_DEPENDS ${CMAKE_SOURCE_DIR}/${exports}
  )
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${CMAKE_SOURCE_DIR}/${exports}
    -Wl,--gc-sections
  )
endfunction()
