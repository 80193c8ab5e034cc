# Facts about this build that `aiacc._core.build_info()` returns, as a generated header.

configure_file(${CMAKE_SOURCE_DIR}/cmake/build_info.h.in
               ${CMAKE_BINARY_DIR}/generated/build_info_values.h @ONLY)
add_library(aiacc_build_info INTERFACE)
target_include_directories(aiacc_build_info INTERFACE ${CMAKE_BINARY_DIR}/generated)
