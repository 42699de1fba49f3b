# Flags of every target of ours.
add_library(dovetail_options INTERFACE)
target_compile_features(dovetail_options INTERFACE cxx_std_20)
target_include_directories(dovetail_options INTERFACE ${CMAKE_SOURCE_DIR})
# subobject-linkage warns of types in unnamed namespaces of headers; in a batch every source looks like a header.
target_compile_options(dovetail_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                       -Wno-subobject-linkage -fopenmp -fno-math-errno)
target_link_options(dovetail_options INTERFACE -Wl,--no-undefined -Wl,--as-needed)
target_link_libraries(dovetail_options INTERFACE torch_wheel OpenMP::OpenMP_CXX Threads::Threads)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g0 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g -DNDEBUG")
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

# Every file pays 3 to 5 s for templates that torch's headers leave pending. Batches pay once for eight files.
option(CMAKE_UNITY_BUILD "Compile sources in batches" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "Sources in a batch")
set(CMAKE_UNITY_BUILD_RELOCATABLE ON)  # relative paths in batches, so that checkouts share the compiler cache
# Programs bind to shared libraries when they start, so a changed library needs no new link of its users.
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)

# Precompiled headers. torch/torch.h is not among them: its pending templates would cost each batch 12 s.
set(common_headers <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string>
    <string_view> <unordered_map> <vector> <fmt/format.h> <nlohmann/json.hpp> <ATen/ATen.h>)
set(module_headers <torch/nn/module.h> <torch/csrc/autograd/custom_function.h>)
function(add_precompiled_header name)
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/cmake/empty.cpp)
  target_link_libraries(${name} PRIVATE dovetail_options nlohmann_json::nlohmann_json)
  target_precompile_headers(${name} PRIVATE ${common_headers} ${ARGN})
endfunction()
add_precompiled_header(dovetail_pch)
add_precompiled_header(dovetail_module_pch ${module_headers})
set(MODULE_LAYERS mx models train cli)
if(DOVETAIL_TESTS)
  # Tests are compiled once and run briefly: -O1 compiles them a quarter faster.
  add_library(dovetail_test_options INTERFACE)
  target_compile_options(dovetail_test_options INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
  add_precompiled_header(dovetail_test_pch ${module_headers} <gtest/gtest.h> <gmock/gmock.h>)
  target_link_libraries(dovetail_test_pch PRIVATE dovetail_test_options)
endif()
