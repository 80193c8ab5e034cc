# Finds the interpreter that runs the build, and the pybind11 installed for it.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import pybind11; print(pybind11.get_cmake_dir())"
  OUTPUT_VARIABLE AIACC_PYBIND11_DIR
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE AIACC_PYBIND11_RESULT
)
if(NOT AIACC_PYBIND11_RESULT EQUAL 0)
  message(FATAL_ERROR "pybind11 is not installed for ${Python_EXECUTABLE}: "
                      "run `${Python_EXECUTABLE} -m pip install 'pybind11>=3.0,<3.2'`")
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 3.0...<3.2 CONFIG REQUIRED PATHS ${AIACC_PYBIND11_DIR} NO_DEFAULT_PATH)
