# Looks for an MPI to build the plug-in against: the compiler wrapper named by AIACC_MPICC, else
# the first `mpicc` on PATH, else the one that the `mpich` wheel put beside the Python interpreter.
# Sets AIACC_MPI_FOUND, AIACC_MPI_FLAVOUR, AIACC_MPI_VERSION, AIACC_MPI_SONAME, AIACC_MPI_REASON
# and defines aiacc_mpi_headers.

set(AIACC_MPICC "$ENV{AIACC_MPICC}" CACHE STRING "MPI compiler wrapper (empty: search)")
set(AIACC_MPI_FOUND FALSE)
set(AIACC_MPI_FLAVOUR "none")
set(AIACC_MPI_VERSION "")
set(AIACC_MPI_SONAME "")
set(AIACC_MPI_REASON "")

# Flavour and version are read from the preprocessor: running a program would need the library.
function(aiacc_mpi_macro header_dirs expression result)
  list(TRANSFORM header_dirs PREPEND "-I")
  file(WRITE ${CMAKE_BINARY_DIR}/mpi_probe.c "#include <mpi.h>\naiacc_probe ${expression}\n")
  execute_process(
    COMMAND ${CMAKE_C_COMPILER} -E -P ${header_dirs} ${CMAKE_BINARY_DIR}/mpi_probe.c
    OUTPUT_VARIABLE text
    ERROR_QUIET
  )
  string(REGEX MATCH "aiacc_probe ([^\n]*)" _ "${text}")
  string(REGEX REPLACE "[\" ]" "" value "${CMAKE_MATCH_1}")
  set(${result} "${value}" PARENT_SCOPE)
endfunction()

# The name under which the dynamic linker will ask for the library (libmpi.so.12, libmpich.so.12 ...).
function(aiacc_mpi_soname libraries result)
  set(probe ${CMAKE_BINARY_DIR}/mpi_probe.so)
  file(WRITE ${CMAKE_BINARY_DIR}/mpi_probe_empty.c "int aiacc_probe;\n")
  execute_process(
    COMMAND ${CMAKE_C_COMPILER} -shared -fPIC -o ${probe} ${CMAKE_BINARY_DIR}/mpi_probe_empty.c
            -Wl,--no-as-needed ${libraries}
    ERROR_QUIET
  )
  execute_process(COMMAND ${CMAKE_READELF} -d ${probe} OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "\\[(libmpi[^]]*)\\]" _ "${text}")
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

if(NOT AIACC_MPI)
  set(AIACC_MPI_REASON "switched off at build time (AIACC_MPI=OFF)")
else()
  if(AIACC_MPICC)
    find_program(MPI_C_COMPILER NAMES ${AIACC_MPICC})
    if(NOT MPI_C_COMPILER)
      message(FATAL_ERROR "AIACC_MPICC=${AIACC_MPICC} is not a program")
    endif()
  else()
    find_program(MPI_C_COMPILER NAMES mpicc)
  endif()
  if(MPI_C_COMPILER)
    find_package(MPI COMPONENTS C)
  endif()
  if(NOT MPI_C_COMPILER)
    set(AIACC_MPI_REASON "no mpicc was found at build time")
  elseif(NOT MPI_C_FOUND)
    set(AIACC_MPI_REASON "${MPI_C_COMPILER} could not compile and link an MPI program")
  else()
    set(AIACC_MPI_FOUND TRUE)
    # No library: the one to use is chosen at run time (csrc/engines/mpi/mpi_loader.h).
    add_library(aiacc_mpi_headers INTERFACE)
    target_include_directories(aiacc_mpi_headers SYSTEM INTERFACE ${MPI_C_INCLUDE_DIRS})

    aiacc_mpi_soname("${MPI_C_LIBRARIES}" AIACC_MPI_SONAME)
    aiacc_mpi_macro("${MPI_C_INCLUDE_DIRS}" MPICH_VERSION mpich)
    aiacc_mpi_macro("${MPI_C_INCLUDE_DIRS}"
                    "OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.OMPI_RELEASE_VERSION" openmpi)
    if(mpich MATCHES "^[0-9]")
      set(AIACC_MPI_FLAVOUR "mpich")
      set(AIACC_MPI_VERSION "${mpich}")
    elseif(openmpi MATCHES "^[0-9]")
      set(AIACC_MPI_FLAVOUR "openmpi")
      set(AIACC_MPI_VERSION "${openmpi}")
    else()
      set(AIACC_MPI_FLAVOUR "unknown")
    endif()
  endif()
endif()
if(AIACC_MPI_FOUND)
  message(STATUS "aiacc: MPI plug-in against ${AIACC_MPI_FLAVOUR} ${AIACC_MPI_VERSION} (${MPI_C_COMPILER})")
else()
  message(STATUS "aiacc: no MPI plug-in: ${AIACC_MPI_REASON}")
endif()
