# A library without contents that is called like TensorFlow's. What is linked to it resolves its TF_
# symbols against the TensorFlow that the process has loaded, whose own name is the same since 2.0.
set(AIACC_TENSORFLOW_NAME_SOURCE ${CMAKE_BINARY_DIR}/tensorflow_name.c)
file(CONFIGURE OUTPUT ${AIACC_TENSORFLOW_NAME_SOURCE} CONTENT "")
add_library(aiacc_tensorflow_name SHARED ${AIACC_TENSORFLOW_NAME_SOURCE})
set_target_properties(aiacc_tensorflow_name PROPERTIES
  OUTPUT_NAME tensorflow_framework
  SUFFIX .so.2
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tensorflow_name
)
target_link_options(aiacc_tensorflow_name INTERFACE LINKER:--no-as-needed)

# What aiacc/tensorflow/op_build.py compiles where TensorFlow does not run the library: shipped with the
# package, in folders of the same names.
foreach(source IN ITEMS
  csrc/bindings/c_api.h
  csrc/bindings/tensorflow/broadcasts.cc
  csrc/bindings/tensorflow/broadcasts.h
  csrc/bindings/tensorflow/collective_kernel.cc
  csrc/bindings/tensorflow/collective_kernel.h
  csrc/bindings/tensorflow/constants.cc
  csrc/bindings/tensorflow/constants.h
  csrc/bindings/tensorflow/cpp_kernels.cc
  csrc/bindings/tensorflow/data_types.h
  csrc/bindings/tensorflow/execution.h
  csrc/bindings/tensorflow/node_calls.cc
  csrc/bindings/tensorflow/node_calls.h
  csrc/bindings/tensorflow/op_specs.cc
  csrc/bindings/tensorflow/op_specs.h
)
  configure_file(${source} ${AIACC_OUTPUT_DIR}/sources/${source} COPYONLY)
endforeach()
