# Kernels for GPUs: a library of its own, built where nvcc is found, opened when a tensor lies on a GPU.
set(DOVETAIL_CUDA AUTO CACHE STRING "Kernels for GPUs: AUTO (where nvcc is found), ON or OFF")
if(DOVETAIL_CUDA STREQUAL "OFF" OR (DOVETAIL_SANITIZE AND NOT DOVETAIL_CUDA STREQUAL "ON"))
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(DOVETAIL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "the preset asks for CUDA, but there is no nvcc; install the CUDA toolkit or use the preset release")
  endif()
  return()
endif()
# Ampere, Hopper with its own instructions, and code for the driver to compile on what is newer.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-virtual)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/*/cuda/*.cu ${CMAKE_SOURCE_DIR}/dovetail/*/cuda/*.cpp)
add_library(dovetail_cuda MODULE ${cuda_sources})
set_target_properties(dovetail_cuda PROPERTIES CUDA_STANDARD 20 CUDA_VISIBILITY_PRESET hidden DISABLE_PRECOMPILE_HEADERS ON
                      BUILD_RPATH "${CMAKE_BINARY_DIR}/lib;${TORCH_DIR}/lib")
target_include_directories(dovetail_cuda PRIVATE ${CMAKE_SOURCE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(dovetail_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter>)
target_include_directories(dovetail_cuda SYSTEM PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${TORCH_DIR}/include>)
target_link_directories(dovetail_cuda PRIVATE ${TORCH_DIR}/lib)
# cuBLASLt is torch's own at run time: one library of that name is loaded already.
target_link_libraries(dovetail_cuda PRIVATE torch_cpu c10 c10_cuda CUDA::cublasLt)
