# Looks for the MPIs to build a plug-in for, one of each flavour: MPICH, whose binary interface others
# share, and Open MPI. Which of them a process uses is decided when it starts, by the mpirun that
# started it (aiacc/mpi_library.py).
#
# Asked are the compiler wrappers named by AIACC_MPICC (separated by blanks or ";"); without it every
# mpicc, mpicc.mpich and mpicc.openmpi on PATH, the one named by AIACC_MPICC_LAST after all others.
# Of each flavour the first that works is taken.
#
# Sets AIACC_MPI_FLAVOURS (a list of "mpich" and "openmpi"), and for each of them
# AIACC_MPI_<flavour> (a text for people) and AIACC_MPI_<flavour>_INCLUDES; AIACC_MPI_REASON, why
# there is none.

set(AIACC_MPICC "$ENV{AIACC_MPICC}" CACHE STRING "MPI compiler wrappers (empty: search)")
set(AIACC_MPICC_LAST "" CACHE STRING "MPI compiler wrapper that any other goes before")
set(AIACC_MPI_FLAVOURS "")
set(AIACC_MPI_mpich "")
set(AIACC_MPI_openmpi "")
set(AIACC_MPI_REASON "")
set(AIACC_MPI_PROBE ${CMAKE_BINARY_DIR}/mpi_probe)

# The wrappers to ask, in order.
function(aiacc_mpi_wrappers result)
  if(AIACC_MPICC)
    string(REPLACE " " ";" named "${AIACC_MPICC}")
    set(wrappers "")
    foreach(name IN LISTS named)
      unset(program)
      find_program(program NAMES ${name} NO_CACHE)
      if(NOT program)
        message(FATAL_ERROR "AIACC_MPICC=${AIACC_MPICC}: ${name} is not a program (expected compiler "
                            "wrappers such as mpicc, separated by blanks)")
      endif()
      list(APPEND wrappers ${program})
    endforeach()
  else()
    cmake_path(CONVERT "$ENV{PATH}" TO_CMAKE_PATH_LIST folders)
    set(wrappers "")
    set(seen "")
    if(AIACC_MPICC_LAST)
      file(REAL_PATH ${AIACC_MPICC_LAST} seen)
    endif()
    foreach(folder IN LISTS folders)
      foreach(name IN ITEMS mpicc mpicc.mpich mpicc.openmpi)
        if(EXISTS ${folder}/${name})
          # Asked by the name that was found: Open MPI's are links to one program, which looks at it.
          file(REAL_PATH ${folder}/${name} real)
          if(NOT real IN_LIST seen)
            list(APPEND wrappers ${folder}/${name})
            list(APPEND seen ${real})
          endif()
        endif()
      endforeach()
    endforeach()
    # Those of an earlier run, too: `cmake --build` configures again with whatever PATH it has.
    foreach(wrapper IN LISTS AIACC_MPI_WRAPPERS)
      if(EXISTS ${wrapper})
        list(APPEND wrappers ${wrapper})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES wrappers)
    list(APPEND wrappers ${AIACC_MPICC_LAST})
    set(AIACC_MPI_WRAPPERS "${wrappers}" CACHE INTERNAL "MPI compiler wrappers that were found")
  endif()
  set(${result} ${wrappers} PARENT_SCOPE)
endfunction()

# Asks one wrapper: flavour, version and soname of its MPI and the folders of its headers, or
# `problem`. Flavour and version are read from the preprocessor: running a program would need the
# library. The soname is what the dynamic linker will ask for (libmpi.so.12, libmpi.so.40 ...).
function(aiacc_mpi_ask wrapper)
  set(problem "")
  file(WRITE ${AIACC_MPI_PROBE}.c "#include <mpi.h>\n"
    "aiacc_mpich MPICH_VERSION\n"
    "aiacc_openmpi OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.OMPI_RELEASE_VERSION\n")
  execute_process(COMMAND ${wrapper} -E -P ${AIACC_MPI_PROBE}.c
    OUTPUT_VARIABLE text ERROR_VARIABLE error RESULT_VARIABLE code)
  execute_process(COMMAND ${wrapper} -show OUTPUT_VARIABLE command ERROR_QUIET RESULT_VARIABLE shown)
  set(flavour "")
  if(NOT code EQUAL 0 OR NOT shown EQUAL 0)
    string(STRIP "${error}" error)
    set(problem "${wrapper} cannot compile an MPI program: ${error}")
  elseif(text MATCHES "aiacc_mpich ([^\n]*[0-9][^\n]*)")
    set(flavour mpich)
  elseif(text MATCHES "aiacc_openmpi ([^\n]*[0-9][^\n]*)")
    set(flavour openmpi)
  else()
    set(problem "${wrapper} belongs to neither MPICH nor Open MPI")
  endif()
  string(REGEX REPLACE "[\" ]" "" version "${CMAKE_MATCH_1}")
  separate_arguments(words UNIX_COMMAND "${command}")
  list(FILTER words INCLUDE REGEX "^-I")
  list(TRANSFORM words REPLACE "^-I" "")

  file(WRITE ${AIACC_MPI_PROBE}.c "int aiacc_probe;\n")
  execute_process(
    COMMAND ${wrapper} -shared -fPIC -Wl,--no-as-needed -o ${AIACC_MPI_PROBE}.so ${AIACC_MPI_PROBE}.c
    OUTPUT_QUIET ERROR_QUIET)
  execute_process(COMMAND ${CMAKE_READELF} -d ${AIACC_MPI_PROBE}.so
    OUTPUT_VARIABLE needed ERROR_QUIET)
  string(REGEX MATCH "\\[(libmpi[^]]*)\\]" _ "${needed}")

  set(problem "${problem}" PARENT_SCOPE)
  set(flavour "${flavour}" PARENT_SCOPE)
  set(includes "${words}" PARENT_SCOPE)
  set(description "${version} (${CMAKE_MATCH_1})" PARENT_SCOPE)
endfunction()

if(NOT AIACC_MPI)
  set(AIACC_MPI_REASON "switched off at build time (AIACC_MPI=OFF)")
else()
  aiacc_mpi_wrappers(wrappers)
  foreach(wrapper IN LISTS wrappers)
    aiacc_mpi_ask(${wrapper})
    if(problem AND AIACC_MPICC)
      message(FATAL_ERROR "AIACC_MPICC=${AIACC_MPICC}: ${problem}")
    elseif(problem)
      set(AIACC_MPI_REASON "${problem}")
    elseif(NOT flavour IN_LIST AIACC_MPI_FLAVOURS)
      list(APPEND AIACC_MPI_FLAVOURS ${flavour})
      set(AIACC_MPI_${flavour} "${description}")
      set(AIACC_MPI_${flavour}_INCLUDES ${includes})
      message(STATUS "aiacc: MPI plug-in for ${flavour} ${description}: ${wrapper}")
    endif()
  endforeach()
  if(AIACC_MPI_FLAVOURS)
    set(AIACC_MPI_REASON "")
  elseif(NOT AIACC_MPI_REASON)
    set(AIACC_MPI_REASON "no mpicc was found at build time")
  endif()
endif()
if(NOT AIACC_MPI_FLAVOURS)
  message(STATUS "aiacc: no MPI plug-in: ${AIACC_MPI_REASON}")
endif()
string(REGEX REPLACE "[\"\\\\\n]" " " AIACC_MPI_REASON "${AIACC_MPI_REASON}")
