# The single list of allowed includes. tools/check_layers.py reads this file; the linker enforces the
# edges between layers, because each layer is one shared library.
#
# LAYER_<folder>: layers that a layer may include, in addition to itself.
set(LAYER_base "")
set(LAYER_report "base")
set(LAYER_data "base")
set(LAYER_ops "base")
set(LAYER_mx "base;ops")
set(LAYER_comm "base;mx")
set(LAYER_plan "base;ops;mx")
set(LAYER_io "base;mx")
set(LAYER_moe "base;ops;mx;comm")
set(LAYER_embedding "base;ops;mx;comm")
set(LAYER_jobs "base;ops;mx;comm")
set(LAYER_fit "base;ops;mx;comm;jobs")
set(LAYER_models "base;data;ops;mx;io;moe;embedding")
set(LAYER_train "base;report;data;ops;mx;comm;plan;io;moe;embedding;jobs;models")
set(LAYER_cli "base;report;data;ops;mx;comm;plan;io;moe;embedding;jobs;fit;models;train")
set(LAYERS base report data ops mx comm plan io moe embedding jobs fit models train cli)

# FOLDERS_<layer>: folders of a layer from the bottom to the top; `.` means its own files. A folder
# may include folders before it. A layer without such a list has `.` and perhaps `cuda`.
set(FOLDERS_base . schema)
set(FOLDERS_data parquet files rows text matrix)
set(FOLDERS_plan milp model record run solve baselines show)
set(FOLDERS_embedding pack cuda hashed tiers ranks .)
set(FOLDERS_jobs . simulate)
set(FOLDERS_fit rows components kmeans mixture regression .)
set(FOLDERS_train config metrics memory numerics optimizer run tables ranks resolve loop gpt recommender report .)
set(FOLDERS_cli parse fit plan simulate commands .)

# Folders with other targets than their layer's library.
set(FOLDERS_APART cuda gloo_declarations milp parquet)

foreach(layer IN LISTS LAYERS)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/${layer}/*.cpp)
  foreach(folder IN LISTS FOLDERS_${layer})
    if(NOT folder STREQUAL "." AND NOT folder IN_LIST FOLDERS_APART)
      file(GLOB more CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/${layer}/${folder}/*.cpp)
      list(APPEND sources ${more})
    endif()
  endforeach()
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
  set(simd_sources ${sources})
  list(FILTER simd_sources INCLUDE REGEX "_simd\\.cpp$")
  set_source_files_properties(${simd_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                              COMPILE_OPTIONS "$<$<CONFIG:Release,RelWithDebInfo>:-O3>")
endforeach()

target_link_libraries(dovetail_base PRIVATE PkgConfig::hwloc)
target_link_libraries(dovetail_data PRIVATE PkgConfig::sentencepiece PkgConfig::utf8proc)
target_link_libraries(dovetail_ops PRIVATE PkgConfig::hwy)
target_link_libraries(dovetail_mx PRIVATE PkgConfig::hwy)
target_link_libraries(dovetail_embedding PRIVATE PkgConfig::hwy)
target_link_libraries(dovetail_fit PRIVATE PkgConfig::hwy)
target_include_directories(dovetail_comm SYSTEM PRIVATE ${CMAKE_SOURCE_DIR}/dovetail/comm/gloo_declarations)

# Parquet in a module of its own, opened when a Parquet file is read: Arrow is 60 MB that nothing else needs.
if(EXISTS ${CMAKE_SOURCE_DIR}/dovetail/data/parquet/parquet_module.cpp)
  file(GLOB parquet_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dovetail/data/parquet/*.cpp)
  add_library(dovetail_parquet MODULE ${parquet_sources})
  target_link_libraries(dovetail_parquet PRIVATE dovetail_data arrow_wheel)
endif()

# HiGHS in a program of its own, which the planner starts: it can be ended at any time, and it starts in
# milliseconds, for it needs no libtorch: of dovetail_options only the flags.
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
