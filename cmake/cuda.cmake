# Looks for nvcc and compiles the kernels to device images (csrc/kernels/device_image.h), which the
# driver loads at run time: nothing of CUDA is linked, and no CUDA header is needed for the rest.
# Sets AIACC_NVCC, AIACC_CUDA_BUILT (the architectures, or empty), AIACC_CUDA_TOOLKIT,
# AIACC_CUDA_TEXT (what there is, or why there is none) and adds to AIACC_KERNEL_SOURCES.

option(AIACC_CUDA "Compile the CUDA kernels if nvcc is found" ON)
set(AIACC_CUDA_ARCHITECTURES "75;80;86;89;90;100" CACHE STRING
    "Compute capabilities to compile for; those that nvcc does not know are left out")
set(AIACC_CUDA_BUILT "")
set(AIACC_CUDA_TOOLKIT "")

find_program(AIACC_NVCC nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(AIACC_NVCC)

if(NOT AIACC_CUDA)
  set(AIACC_CUDA_TEXT "switched off at build time (AIACC_CUDA=OFF)")
elseif(NOT AIACC_NVCC)
  set(AIACC_CUDA_TEXT "no nvcc was found at build time")
else()
  execute_process(COMMAND ${AIACC_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
  execute_process(COMMAND ${AIACC_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" _ "${version}")
  set(AIACC_CUDA_TOOLKIT "${CMAKE_MATCH_1}")
  string(REGEX MATCHALL "[0-9]+" known "${known}")
  foreach(architecture IN LISTS AIACC_CUDA_ARCHITECTURES)
    if(architecture IN_LIST known)
      list(APPEND AIACC_CUDA_BUILT ${architecture})
    endif()
  endforeach()
  if(AIACC_CUDA_BUILT)
    list(JOIN AIACC_CUDA_BUILT ", " names)
    set(AIACC_CUDA_TEXT "kernels for compute capability ${names} (toolkit ${AIACC_CUDA_TOOLKIT})")
  else()
    set(AIACC_CUDA_TEXT
        "${AIACC_NVCC} can compile for none of AIACC_CUDA_ARCHITECTURES=${AIACC_CUDA_ARCHITECTURES}")
  endif()
endif()
message(STATUS "aiacc: CUDA: ${AIACC_CUDA_TEXT}")

if(NOT AIACC_CUDA_BUILT)
  list(APPEND AIACC_KERNEL_SOURCES csrc/kernels/no_device_image.cc)
  return()
endif()

set(AIACC_NVCC_FLAGS -std=c++17 -O3 -I${CMAKE_SOURCE_DIR})
foreach(architecture IN LISTS AIACC_CUDA_BUILT)
  list(APPEND AIACC_NVCC_TARGETS -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
# What is newer than all of them gets the last one's intermediate code.
list(GET AIACC_CUDA_BUILT -1 newest)
list(APPEND AIACC_NVCC_TARGETS -gencode arch=compute_${newest},code=compute_${newest})

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
list(APPEND AIACC_KERNEL_SOURCES csrc/kernels/device_image.cc)

if(AIACC_WERROR)
  list(APPEND AIACC_NVCC_FLAGS -Werror all-warnings)
endif()

# aiacc_device_image(csrc/kernels/gpu/block_code.cu BLOCK_CODE): AIACC_BLOCK_CODE_IMAGE is the image's path there.
# Only device code is made of it, so a host compiler that is newer than nvcc expects does no harm.
# Compressed, because most of it is zeros: the space that is reserved for arguments.
# Kept for tests/unit/test_cuda_kernels.py: what ptxas says of registers (.ptxas), and a folder with the
# intermediate code.
function(aiacc_device_image source name)
  set(source ${CMAKE_SOURCE_DIR}/${source})
  get_filename_component(stem ${source} NAME_WE)
  set(image ${CMAKE_BINARY_DIR}/generated/${stem}.fatbin)
  set(report ${CMAKE_BINARY_DIR}/generated/${stem}.ptxas)
  set(kept ${CMAKE_BINARY_DIR}/generated/${stem})
  file(MAKE_DIRECTORY ${kept})
  add_custom_command(
    OUTPUT ${image}
    BYPRODUCTS ${report}
    COMMAND sh -c "\"$@\" 2>${report} || { cat ${report} >&2; exit 1; }" sh
            ${AIACC_NVCC} -fatbin ${AIACC_NVCC_FLAGS} ${AIACC_NVCC_TARGETS}
            -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler -Xptxas -v
            --keep --keep-dir ${kept} -Xfatbin=-compress-all -MD -MF ${image}.d -o ${image} ${source}
    DEPENDS ${source}
    DEPFILE ${image}.d
    COMMENT "Compiling the CUDA kernels of ${stem}"
    VERBATIM
  )
  set_property(SOURCE csrc/kernels/device_image.cc APPEND PROPERTY
    COMPILE_DEFINITIONS "AIACC_${name}_IMAGE=\"${image}\"")
  set_property(SOURCE csrc/kernels/device_image.cc APPEND PROPERTY OBJECT_DEPENDS ${image})
endfunction()
aiacc_device_image(csrc/kernels/batch_copy.cu BATCH_COPY)
aiacc_device_image(csrc/kernels/gpu/add_pairs.cu ADD_PAIRS)
aiacc_device_image(csrc/kernels/gpu/block_code.cu BLOCK_CODE)
aiacc_device_image(csrc/kernels/gpu/optim/factor_packing.cu FACTOR_PACKING)
aiacc_device_image(csrc/kernels/gpu/optim/lamb_update.cu LAMB_UPDATE)
aiacc_device_image(csrc/kernels/gpu/optim/lars_update.cu LARS_UPDATE)
aiacc_device_image(csrc/kernels/gpu/selection.cu SELECTION)
