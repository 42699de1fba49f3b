# External dependencies, as imported targets. torch, pyarrow and HiGHS come from the wheels of the
# environment. The CMake packages of torch and pyarrow require a CUDA compiler. The package of HiGHS
# names a folder of its builder. So plain imported libraries replace these packages.
find_package(Python REQUIRED COMPONENTS Interpreter)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)

execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
  OUTPUT_VARIABLE ARROW_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('highsbox').submodule_search_locations[0])"
  OUTPUT_VARIABLE HIGHS_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(APPEND HIGHS_DIR /highs_dist)
get_filename_component(SITE_PACKAGES ${TORCH_DIR} DIRECTORY)
set(CMAKE_BUILD_RPATH ${CMAKE_LIBRARY_OUTPUT_DIRECTORY} ${TORCH_DIR}/lib ${ARROW_DIR} ${HIGHS_DIR}/lib)

# torch_cpu and c10 only: code that needs a GPU lives in a library of its own.
add_library(torch_wheel INTERFACE)
target_include_directories(torch_wheel SYSTEM INTERFACE ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
target_link_directories(torch_wheel INTERFACE ${TORCH_DIR}/lib)
target_link_libraries(torch_wheel INTERFACE torch_cpu c10)
# fmt comes with torch's headers alone; dovetail/base/format.cpp is its compiled part.
target_compile_definitions(torch_wheel INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)

file(GLOB ARROW_LIB ${ARROW_DIR}/libarrow.so.*)
file(GLOB PARQUET_LIB ${ARROW_DIR}/libparquet.so.*)
list(GET ARROW_LIB 0 ARROW_LIB)
list(GET PARQUET_LIB 0 PARQUET_LIB)
add_library(arrow_wheel INTERFACE)
target_include_directories(arrow_wheel SYSTEM INTERFACE ${ARROW_DIR}/include)
target_link_libraries(arrow_wheel INTERFACE ${PARQUET_LIB} ${ARROW_LIB})

# Its C interface only (interfaces/highs_c_api.h): its C++ functions have the ABI of g++ before 5.
add_library(highs_wheel INTERFACE)
target_include_directories(highs_wheel SYSTEM INTERFACE ${HIGHS_DIR}/include/highs ${HIGHS_DIR}/include)
target_link_libraries(highs_wheel INTERFACE ${HIGHS_DIR}/lib/libhighs.so)

pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(png REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(turbojpeg REQUIRED IMPORTED_TARGET libturbojpeg)
find_package(nlohmann_json REQUIRED)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()
