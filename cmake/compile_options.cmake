# Flags of every target of ours.
add_library(dovetail_options INTERFACE)
target_compile_features(dovetail_options INTERFACE cxx_std_20)
target_include_directories(dovetail_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(dovetail_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                       -fopenmp -fno-math-errno)
target_link_options(dovetail_options INTERFACE -Wl,--no-undefined -Wl,--as-needed)
target_link_libraries(dovetail_options INTERFACE torch_wheel OpenMP::OpenMP_CXX Threads::Threads)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g0 -DNDEBUG")
endif()
if(DOVETAIL_SANITIZE)
  target_compile_options(dovetail_options INTERFACE -fsanitize=${DOVETAIL_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=undefined)
  target_link_options(dovetail_options INTERFACE -fsanitize=${DOVETAIL_SANITIZE})
  # A sanitizer's runtime defines what --no-undefined would ask for.
  set_property(TARGET dovetail_options PROPERTY INTERFACE_LINK_OPTIONS
               -Wl,--as-needed -fsanitize=${DOVETAIL_SANITIZE})
  # vptr checks need the run-time type information of torch's own classes, which the wheel does not export.
  target_compile_options(dovetail_options INTERFACE -fno-sanitize=vptr)
endif()

# Precompiled headers: one for libraries, one for tests, and one each for those that see modules. Not torch/torch.h: the
# templates that it leaves pending are instantiated again in every file, 12 s each; ATen/ATen.h costs 2 s so, modules 6 s.
set(common_headers <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string>
    <string_view> <unordered_map> <vector> <fmt/format.h> <nlohmann/json.hpp> <ATen/ATen.h>)
set(module_headers <torch/nn/module.h> <torch/csrc/autograd/custom_function.h>)
set(test_headers <gtest/gtest.h> <gmock/gmock.h>)
function(add_precompiled_header name)
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/cmake/empty.cpp)
  target_link_libraries(${name} PRIVATE dovetail_options nlohmann_json::nlohmann_json)
  target_precompile_headers(${name} PRIVATE ${common_headers} ${ARGN})
endfunction()
add_precompiled_header(dovetail_pch)
add_precompiled_header(dovetail_module_pch ${module_headers})
if(DOVETAIL_TESTS)
  add_precompiled_header(dovetail_test_pch ${test_headers})
  add_precompiled_header(dovetail_module_test_pch ${module_headers} ${test_headers})
endif()
set(MODULE_LAYERS mx models train cli)
