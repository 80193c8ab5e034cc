# Facts about this build that `aiacc._core.build_info()` returns, as a generated header.

find_program(AIACC_NVCC nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(AIACC_NVCC)
if(AIACC_NVCC)
  execute_process(COMMAND ${AIACC_NVCC} --version OUTPUT_VARIABLE AIACC_NVCC_TEXT ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" _ "${AIACC_NVCC_TEXT}")
  set(AIACC_CUDA "toolkit ${CMAKE_MATCH_1} found, not used: this version has no CUDA code yet")
else()
  set(AIACC_CUDA "no nvcc found at build time; this version has no CUDA code yet")
endif()

configure_file(${CMAKE_SOURCE_DIR}/cmake/build_info.h.in
               ${CMAKE_BINARY_DIR}/generated/build_info_values.h @ONLY)
add_library(aiacc_build_info INTERFACE)
target_include_directories(aiacc_build_info INTERFACE ${CMAKE_BINARY_DIR}/generated)
