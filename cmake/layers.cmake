# The single list of layers, folders and allowed includes. `tools/check_layers.py` checks includes.
# It also copies the comments to `docs/design/architecture.md`. The linker enforces the edges between
# layers, because each layer is one shared library.
#
# LAYER_<layer>: layers that a layer may include, in addition to itself. They come before it in LAYERS.
set(LAYER_base "")  # errors, log, config schema, files, randomness, trace, machine, threads
set(LAYER_report "base")  # pages and charts: style, script, escaping
set(LAYER_data "base")  # text and tokenizers, rows of events, numeric tables, Parquet
set(LAYER_ops "base")  # kernels: GEMM, attention, norms, activations, loss, convolution, AdamW
set(LAYER_mx "base;ops")  # number formats: quantize, quantized Linears, recipes
set(LAYER_comm "base;ops;mx")  # ranks, collectives, gradient all-reduce, cost model of a network
set(LAYER_plan "base;ops;mx")  # memory plan of a training step: offload, recompute, compress
set(LAYER_io "base;mx")  # safetensors, checkpoints
set(LAYER_moe "base;ops;mx;comm")  # mixtures of experts: routers, dispatch, experts over ranks
set(LAYER_embedding "base;ops;mx;comm")  # embedding tables: lookup, update, tiers of memory, sharding
set(LAYER_jobs "base;ops;mx;comm")  # one job on CPUs, GPUs and nodes of unequal speed
set(LAYER_fit "base;ops;mx;comm;jobs")  # k-means, mixtures, regression, components as such jobs
set(LAYER_models "base;data;ops;mx;io;moe;embedding")  # GPT, recommenders, vision models; Hugging Face
set(LAYER_train "base;report;data;ops;mx;comm;plan;io;moe;embedding;jobs;models")  # training runs
set(LAYER_cli "base;report;data;ops;mx;comm;plan;io;moe;embedding;jobs;fit;models;train")  # the program
set(LAYERS base report data ops mx comm plan io moe embedding jobs fit models train cli)

# FOLDERS_<layer>: folders of a layer from the bottom to the top. A folder may include folders before
# it; `.` means files of the layer itself. A layer without a list has `.` and device code in `cuda`.
set(FOLDERS_base
    .
    schema)  # config keys: parsing, ranges, units, documentation
set(FOLDERS_data
    parquet  # module that reads Parquet by Arrow
    files  # inputs of any kind: compression, UTF-8, prefetch
    rows  # tables of events for recommenders
    images  # images and masks for vision models
    text  # corpora, tokenizers, token shards, sampling
    matrix)  # numeric tables for dovetail fit and kmeans
set(FOLDERS_comm
    gloo_declarations  # headers of Gloo that the torch wheel leaves out
    .
    cuda)  # NCCL
set(FOLDERS_plan
    milp  # program that solves integer programs by HiGHS
    model  # a step as a graph, actions of a plan, bytes over time
    device  # memory, copies and times of a CPU or GPU
    record  # recording a step: operations, tensors, algorithms
    run  # running a plan: executor, allocators, host tier, profile
    solve  # finding a plan within a budget
    baselines  # peers' planners: Checkmate, Chen
    show  # tables and curves of a plan
    step  # training steps within a budget: recorded, planned, run
    cuda)  # planned steps on GPUs
set(FOLDERS_embedding
    pack  # tables of equal width in one storage: lookup, update, row formats
    cuda  # device code
    tiers  # rows in memory and on disk
    hashed  # tables without a fixed vocabulary
    ranks  # placement of tables on ranks, exchange
    .)
set(FOLDERS_jobs
    .
    simulate)  # the scheduler under a virtual clock
set(FOLDERS_fit
    rows  # tables of numbers, dense algebra
    components  # principal components
    kmeans  # k-means: assignment kernel, initial centres, mini-batches
    cuda  # device code
    mixture  # Gaussian mixtures
    regression  # linear and logistic regression
    .)
set(FOLDERS_train
    config  # config of a run
    metrics  # metrics.jsonl, validation, AUC
    memory  # a step under a memory plan, and its log
    numerics  # precision and quantization recipes
    optimizer  # AdamW, learning-rate schedule, gradient clipping
    run  # run folder, stored runs, progress, signals
    embedding_tables  # a recommender's tables: lookups, optimizers, checkpoints
    ranks  # shares of ranks: samples, experts, load
    resolve  # everything decided before training: checks, device, sizes, memory
    loop  # steps, evaluation, checkpoints, resume
    gpt  # training of a GPT
    recommender  # training of a recommender
    vision  # training of a vision model
    report  # report.html of a run
    suites  # benchmark suites of a GPT, read from Parquet
    .)
set(FOLDERS_cli
    parse  # options, messages, exit codes
    fit  # shared by dovetail fit and kmeans
    plan  # shared by dovetail plan
    simulate  # dovetail simulate
    commands  # one file per subcommand
    .)

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
target_link_libraries(dovetail_data PRIVATE PkgConfig::sentencepiece PkgConfig::utf8proc PkgConfig::png PkgConfig::turbojpeg)
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
