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

# One precompiled header for all libraries and one for all tests: torch/torch.h costs 12 s a file without it.
add_library(dovetail_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/empty.cpp)
target_link_libraries(dovetail_pch PRIVATE dovetail_options nlohmann_json::nlohmann_json)
target_precompile_headers(dovetail_pch PRIVATE
  <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string> <string_view>
  <unordered_map> <vector> <fmt/format.h> <nlohmann/json.hpp> <torch/torch.h>)
add_library(dovetail_test_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/empty.cpp)
target_link_libraries(dovetail_test_pch PRIVATE dovetail_options nlohmann_json::nlohmann_json)
target_precompile_headers(dovetail_test_pch PRIVATE
  <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string> <string_view>
  <unordered_map> <vector> <fmt/format.h> <nlohmann/json.hpp> <torch/torch.h> <gtest/gtest.h> <gmock/gmock.h>)
