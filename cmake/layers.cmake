# The single list of allowed edges: a folder may include itself and the folders in its list. The
# script tools/check_layers.py reads this file. The linker enforces the same edges (one shared
# library per folder).
set(LAYER_base "")
set(LAYER_data "base")
set(LAYER_ops "base")
set(LAYER_mx "base;ops")
set(LAYER_comm "base;mx")
set(LAYER_plan "base;ops;mx")
set(LAYER_io "base;mx")
set(LAYER_moe "base;ops;mx;comm")
set(LAYER_embedding "base;ops;mx;comm")
set(LAYER_hybrid "base;ops;mx;comm")
set(LAYER_models "base;data;ops;mx;io;moe;embedding")
set(LAYER_train "base;data;ops;mx;comm;plan;io;moe;embedding;hybrid;models")
set(LAYER_cli "base;data;ops;mx;comm;plan;io;moe;embedding;hybrid;models;train")
set(LAYERS base data ops mx comm plan io moe embedding hybrid models train cli)

foreach(layer IN LISTS LAYERS)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/${layer}/*.cpp)
  list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/dovetail/cli/main.cpp)
  if(NOT sources)
    set(sources ${CMAKE_SOURCE_DIR}/cmake/empty.cpp)
  endif()
  add_library(dovetail_${layer} SHARED ${sources})
  target_link_libraries(dovetail_${layer} PUBLIC dovetail_options nlohmann_json::nlohmann_json)
  foreach(below IN LISTS LAYER_${layer})
    target_link_libraries(dovetail_${layer} PUBLIC dovetail_${below})
  endforeach()
  if(layer IN_LIST MODULE_LAYERS)
    target_precompile_headers(dovetail_${layer} REUSE_FROM dovetail_module_pch)
  else()
    target_precompile_headers(dovetail_${layer} REUSE_FROM dovetail_pch)
  endif()
  set_target_properties(dovetail_${layer} PROPERTIES DEFINE_SYMBOL "")
  # Highway compiles a kernel once per instruction set from one file: it must see its own headers first. Loops of a
  # constant number of vectors stay in registers only when they are unrolled, which -O2 does not do.
  file(GLOB simd_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/${layer}/*_simd.cpp)
  set_source_files_properties(${simd_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                              COMPILE_OPTIONS "$<$<CONFIG:Release,RelWithDebInfo>:-O3>")
endforeach()

target_link_libraries(dovetail_base PRIVATE PkgConfig::hwloc)
target_link_libraries(dovetail_data PRIVATE PkgConfig::sentencepiece PkgConfig::utf8proc)
target_link_libraries(dovetail_ops PRIVATE PkgConfig::hwy)
target_link_libraries(dovetail_mx PRIVATE PkgConfig::hwy)
target_link_libraries(dovetail_embedding PRIVATE PkgConfig::hwy)
target_link_libraries(dovetail_hybrid PRIVATE PkgConfig::hwy)
target_include_directories(dovetail_comm SYSTEM PRIVATE ${CMAKE_SOURCE_DIR}/dovetail/comm/gloo_declarations)

# Parquet in a module of its own, opened when a Parquet file is read: Arrow is 60 MB that nothing else needs.
if(EXISTS ${CMAKE_SOURCE_DIR}/dovetail/data/parquet/parquet_module.cpp)
  file(GLOB parquet_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/data/parquet/*.cpp)
  add_library(dovetail_parquet MODULE ${parquet_sources})
  target_link_libraries(dovetail_parquet PRIVATE dovetail_data arrow_wheel)
endif()

# HiGHS in a program of its own, which the planner starts and can end at any time. The program
# starts in milliseconds, since it needs no libtorch. It uses only the flags of dovetail_options.
add_executable(dovetail-milp ${CMAKE_SOURCE_DIR}/dovetail/plan/milp/main.cpp)
target_include_directories(dovetail-milp PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(dovetail-milp PRIVATE $<TARGET_PROPERTY:dovetail_options,INTERFACE_COMPILE_OPTIONS>)
target_link_options(dovetail-milp PRIVATE $<TARGET_PROPERTY:dovetail_options,INTERFACE_LINK_OPTIONS>)
target_link_libraries(dovetail-milp PRIVATE nlohmann_json::nlohmann_json highs_wheel Threads::Threads)
set_target_properties(dovetail-milp PROPERTIES BUILD_RPATH "${HIGHS_DIR}/lib")
add_dependencies(dovetail_plan dovetail-milp)

foreach(layer train cli)
  target_compile_definitions(dovetail_${layer} PRIVATE DOVETAIL_VERSION="${PROJECT_VERSION}")
endforeach()
