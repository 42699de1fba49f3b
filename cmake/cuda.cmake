# Kernels for GPUs: a library of its own, built where the environment has nvcc, opened when a tensor lies on a GPU.
set(DOVETAIL_CUDA AUTO CACHE STRING "Kernels for GPUs: AUTO (where the environment has nvcc), ON or OFF")
if(DOVETAIL_CUDA STREQUAL "OFF" OR (DOVETAIL_SANITIZE AND NOT DOVETAIL_CUDA STREQUAL "ON"))
  return()
endif()
set(cuda_root ${SITE_PACKAGES}/nvidia/cu13)  # requirements.in brings nvcc, torch brings the libraries
if(NOT EXISTS ${cuda_root}/bin/nvcc)
  if(DOVETAIL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "the preset asks for CUDA, but the environment has no ${cuda_root}/bin/nvcc; install requirements.lock on Linux or use the preset release")
  endif()
  return()
endif()
set(CMAKE_CUDA_COMPILER ${cuda_root}/bin/nvcc)
string(APPEND CMAKE_CUDA_FLAGS " -L${cuda_root}/lib")  # nvcc itself looks in lib64, which no package of the environment has
# Ampere, Hopper with its own instructions, and code for the driver to compile on what is newer.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-virtual)
enable_language(CUDA)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/*/cuda/*.cu ${CMAKE_SOURCE_DIR}/dovetail/*/cuda/*.cpp)
add_library(dovetail_cuda MODULE ${cuda_sources})
set_target_properties(dovetail_cuda PROPERTIES CUDA_STANDARD 20 CUDA_VISIBILITY_PRESET hidden DISABLE_PRECOMPILE_HEADERS ON
                      UNITY_BUILD OFF)
target_include_directories(dovetail_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(dovetail_cuda SYSTEM PRIVATE ${cuda_root}/include ${SITE_PACKAGES}/nvidia/nccl/include
                           ${SITE_PACKAGES}/nvidia/cudnn/include)
target_compile_definitions(dovetail_cuda PRIVATE USE_DISTRIBUTED USE_C10D_NCCL)  # as torch's wheel was built
target_compile_options(dovetail_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter>)
target_include_directories(dovetail_cuda SYSTEM PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${TORCH_DIR}/include>
                           $<$<COMPILE_LANGUAGE:CXX>:${TORCH_DIR}/include/torch/csrc/api/include>)
target_link_directories(dovetail_cuda PRIVATE ${TORCH_DIR}/lib)
# A module may have undefined symbols, which only a machine with a GPU would report: here each must be found.
target_link_options(dovetail_cuda PRIVATE -Wl,--no-undefined)
target_link_libraries(dovetail_cuda PRIVATE $<LINK_ONLY:dovetail_plan> $<LINK_ONLY:dovetail_mx> $<LINK_ONLY:dovetail_ops> $<LINK_ONLY:dovetail_base>
                      torch_cuda torch_cpu c10 c10_cuda ${cuda_root}/lib/libcublas.so.13 ${cuda_root}/lib/libcublasLt.so.13
                      ${SITE_PACKAGES}/nvidia/cudnn/lib/libcudnn.so.9)
set_property(TARGET dovetail_cuda APPEND PROPERTY BUILD_RPATH ${cuda_root}/lib ${SITE_PACKAGES}/nvidia/cudnn/lib)
