# find_package(dovetail) -> dovetail::base, dovetail::data, ..., dovetail::train. Needs Python with torch 2.11 at configure time:
# -DPython_EXECUTABLE=<python of the environment>.
get_filename_component(dovetail_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Python REQUIRED COMPONENTS Interpreter)
find_package(nlohmann_json REQUIRED)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE dovetail_torch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
foreach(layer base report data ops mx comm plan io moe embedding jobs fit models train)
  if(NOT TARGET dovetail::${layer})
    add_library(dovetail::${layer} SHARED IMPORTED)
    set_target_properties(dovetail::${layer} PROPERTIES IMPORTED_LOCATION ${dovetail_prefix}/lib/libdovetail_${layer}.so)
    target_include_directories(dovetail::${layer} SYSTEM INTERFACE ${dovetail_prefix}/include
      ${dovetail_torch}/include ${dovetail_torch}/include/torch/csrc/api/include)
    target_link_directories(dovetail::${layer} INTERFACE ${dovetail_torch}/lib)
    target_link_options(dovetail::${layer} INTERFACE -Wl,-rpath,${dovetail_prefix}/lib -Wl,-rpath,${dovetail_torch}/lib
                        -Wl,-rpath-link,${dovetail_torch}/lib)
    target_compile_features(dovetail::${layer} INTERFACE cxx_std_20)
    target_link_libraries(dovetail::${layer} INTERFACE torch_cpu c10 nlohmann_json::nlohmann_json)
  endif()
endforeach()
# The order of cmake/layers.cmake, so that naming the top one is enough.
target_link_libraries(dovetail::train INTERFACE dovetail::models dovetail::jobs dovetail::embedding dovetail::moe
                                                dovetail::io dovetail::plan dovetail::comm dovetail::mx dovetail::ops dovetail::data
                                                dovetail::report dovetail::base)
target_link_libraries(dovetail::models INTERFACE dovetail::embedding dovetail::moe dovetail::io dovetail::mx
                                                 dovetail::ops dovetail::data dovetail::base)
target_link_libraries(dovetail::moe INTERFACE dovetail::comm dovetail::mx dovetail::ops dovetail::base)
target_link_libraries(dovetail::fit INTERFACE dovetail::jobs dovetail::ops dovetail::base)
target_link_libraries(dovetail::jobs INTERFACE dovetail::comm dovetail::ops dovetail::base)
target_link_libraries(dovetail::embedding INTERFACE dovetail::comm dovetail::mx dovetail::ops dovetail::base)
target_link_libraries(dovetail::mx INTERFACE dovetail::ops dovetail::base)
target_link_libraries(dovetail::io INTERFACE dovetail::base)
target_link_libraries(dovetail::plan INTERFACE dovetail::mx dovetail::ops dovetail::base)
target_link_libraries(dovetail::ops INTERFACE dovetail::base)
target_link_libraries(dovetail::comm INTERFACE dovetail::mx dovetail::base)
target_link_libraries(dovetail::data INTERFACE dovetail::base)
