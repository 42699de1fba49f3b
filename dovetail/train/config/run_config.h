#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/text/data_config.h"
#include "dovetail/models/config.h"
#include "dovetail/models/recommender_config.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::train {

struct RunSection {
  std::string name = "run";
  std::string folder;  ///< run folder; empty: runs/<name>
  int64_t seed = 1;
  std::string device = "auto";      ///< auto | cpu | cuda
  std::string cuda_graph = "auto";  ///< auto | on | off
  /// CPU threads of a rank. 0: all cores (divided by the ranks of this machine).
  int64_t threads = 0;
  void describe(Section& s);
};

struct TrainSection {
  static constexpr int64_t kPass = 0, kAuto = -1;
  int64_t steps = 1000;  ///< optimizer steps; kPass: one pass over rows.day
  int64_t batch = 8;     ///< samples of a step over all ranks and micro-batches
  /// Samples that a rank processes at a time. 0: all samples of the rank. kAuto: the fastest size,
  /// by measurement; only for recommenders.
  int64_t micro_batch = 0;
  bool checkpoint_activations = false;
  double clip = 1.0;              ///< maximum global gradient norm; 0: no clipping
  int64_t max_skipped_steps = 3;  ///< maximum non-finite steps in a row before the run stops
  int64_t bucket_bytes = 4194304;
  double init_noise = 0;    ///< noise of initial matrices, relative to their standard deviation
  double time_limit_s = 0;  ///< save and exit with 0 after this time; 0: no limit
  void describe(Section& s);
};

struct OptimizerSection {
  std::string name = "adamw";
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< matrices only; norms and biases do not decay
  void describe(Section& s);
};

struct ScheduleSection {
  int64_t warmup_steps = 0;
  std::string decay = "cosine";  ///< cosine | linear | wsd | constant
  double min_lr_ratio = 0.1;
  double decay_fraction = 0.2;  ///< wsd: share of the run that decays, at its end
  void describe(Section& s);
};

/// Recipe override for some Linears.
struct PrecisionOverride {
  std::vector<std::string> layers;  ///< globs over names of Linears
  std::vector<std::string> tensors = {"weight", "activation", "gradient"};
  std::string recipe;
  void describe(Section& s);
};

struct PrecisionSection {
  std::string recipe = "auto";    ///< auto | fp32 | bf16 | fp64 (for tests) | a quantizing recipe
  std::string gemm = "emulated";  ///< emulated | native
  std::vector<PrecisionOverride> overrides;
  std::vector<mx::RecipeSection> recipes;
  void describe(Section& s);
};

/// Training within a memory budget (train/memory/planned_step.h).
struct MemorySection {
  std::string budget;      ///< maximum memory of a step (plan::parse_budget); empty: no plan
  std::string folder;      ///< folder to offload tensors to; empty: no offload
  std::string host_bytes;  ///< maximum bytes in `folder` (parse_byte_size); empty: no limit
  /// Names of PlannedStep::kTechniques. kAuto: all techniques that do not change results.
  std::vector<std::string> allow = {kAuto};
  static constexpr const char* kAuto = "auto";
  double solve_s = 30;
  void describe(Section& s);
  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  int64_t every_steps = 500;  ///< steps between checkpoints; 0: only at the end
  int64_t keep = 3;
  /// Recommenders: one in this many checkpoints is full, the others are deltas.
  int64_t full_every = 1;
  void describe(Section& s);
};

struct EvalSection {
  int64_t every_steps = 250;  ///< steps between evaluations; 0: only at the end
  /// Maximum validation tokens per evaluation while training; 0: all. The last evaluation reads
  /// all.
  int64_t max_tokens = 200000;
  /// Maximum validation rows per evaluation of a recommender while training; 0: all.
  int64_t max_rows = 0;
  void describe(Section& s);
};

struct LogSection {
  bool tensorboard = true;
  int64_t quantization_every = 100;  ///< steps between lines of quantization.jsonl; 0: none
  int64_t experts_every = 100;       ///< steps between lines of experts.jsonl; 0: none
  int64_t tables_every = 100;        ///< steps between lines of tables.jsonl; 0: none
  std::vector<int64_t> trace_steps;  ///< steps recorded to trace-<step>.json
  /// Prompts that the trained model continues at the end, for the report.
  std::vector<std::string> sample_prompts;
  int64_t sample_tokens = 120;
  void describe(Section& s);
};

struct CommSection {
  double timeout_s = 60;
  void describe(Section& s);
};

struct ParallelSection {
  /// State that is sharded over ranks: none | optimizer | gradients.
  std::string shard = "none";
  int64_t expert = 1;  ///< number of ranks over which each layer's experts are spread
  /// Number of ranks over which one expert is cut. 0: 1, or the minimum that gives every rank an
  /// expert's slice.
  int64_t expert_tensor = 0;
  int64_t r = 1;                      ///< moe::Plan::shards, or kAuto
  int64_t overlap = 1;                ///< moe::Plan::overlap, or kAuto
  std::string all_to_all = "linear";  ///< linear | 2dh | auto
  /// Number of experts, by highest recent load, that every rank gathers; or kAuto.
  int64_t shadow = 0;
  std::string dispatch = "unchanged", combine = "unchanged";  ///< payload formats (comm/payload.h)
  int64_t ranks_per_node = 0;  ///< 0: number of ranks on this machine
  std::string costs;  ///< cost model file (comm/cost_model.h); empty: measured if a key is auto
  int64_t choose_every = 100;
  static constexpr int64_t kAuto = -1;
  bool shards() const { return shard != "none"; }
  bool chooses() const {
    return r == kAuto || overlap == kAuto || shadow == kAuto || all_to_all == "auto";
  }
  void describe(Section& s);
  bool operator==(const ParallelSection&) const = default;
};

/// Division of a step's samples among ranks (train/ranks/batch_shares.h).
struct BalanceSection {
  std::string mode = "off";     ///< off | fixed | auto
  std::vector<int64_t> shares;  ///< fixed: micro-batches of each rank
  double gain = 0.05;  ///< auto: minimum relative reduction of compute time for a move of shares
  void describe(Section& s);
  bool operator==(const BalanceSection&) const = default;
};

/// Admission and eviction of ids in tables without a fixed vocabulary (embedding/hashed/hashed.h).
struct DynamicSection {
  std::string admission = "always";  ///< always | count | probability
  int64_t min_count = 2;
  int64_t max_candidates = 1000000;  ///< per table
  double probability = 0.1;
  std::string eviction = "none";  ///< none | age | frequency
  int64_t evict_steps = 1000, max_age = 100000;
  int64_t keep_rows = 0;  ///< per table
  void describe(Section& s);
  bool operator==(const DynamicSection&) const = default;
};

/// Optimizer override for some tables. Keys that are left out take the values of EmbeddingSection.
struct EmbeddingOverride {
  static constexpr double kGeneral = -1;
  std::vector<std::string> tables;  ///< globs over table names
  std::string optimizer;            ///< empty: EmbeddingSection::optimizer
  double lr = 0;                    ///< 0: EmbeddingSection::lr
  double momentum = kGeneral;
  std::vector<double> betas;  ///< empty: EmbeddingSection::betas
  double eps = 0;             ///< 0: EmbeddingSection::eps
  double weight_decay = kGeneral;
  void describe(Section& s);
};

/// Embedding tables of a recommender.
struct EmbeddingSection {
  static constexpr int64_t kAuto = -1;  ///< chosen by measurement in some steps before the first
  std::string pooling = "sum";          ///< pooling of a bag's rows: sum | mean
  std::string row_dtype = "fp32";       ///< fp32 | bf16 | mxfp8
  std::string optimizer = "rowwise_adagrad";
  double lr = 0.02;  ///< maximum learning rate of rows, which follows [schedule] like optimizer.lr
  double momentum = 0.9;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  std::vector<EmbeddingOverride> overrides;
  std::string sharding = "auto";  ///< auto | row | table | column | replicated
  /// Format of pooled rows and their gradients between ranks: fp32 | bf16 | mxfp8.
  std::string exchange = "fp32";
  bool packing = true;
  int64_t groups = 1;
  /// Memory of a rank for rows and their state; the other rows are on the disk. 0: all rows in
  /// memory.
  int64_t memory_bytes = 0;
  std::string policy = "hot";
  int64_t warmup_steps = 100, refresh_steps = 1000, step_rows = 0;
  DynamicSection dynamic;
  void describe(Section& s);
};

struct RunConfig {
  RunSection run;
  models::ModelConfig model;
  models::RecommenderConfig recommender;  ///< model of a recommender run, which has no [model]
  data::RowsConfig rows;
  EmbeddingSection embedding;
  data::DataConfig data;
  TrainSection train;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  PrecisionSection precision;
  MemorySection memory;
  CheckpointSection checkpoint;
  EvalSection eval;
  LogSection log;
  CommSection comm;
  ParallelSection parallel;
  BalanceSection balance;
  void describe(Section& s);
  bool recommends() const { return !recommender.model.empty(); }
  /// Returns the unit that steps and losses count: "token" or "sample".
  const char* unit() const { return recommends() ? "sample" : "token"; }
  std::filesystem::path folder() const {
    return run.folder.empty() ? "runs/" + run.name : run.folder;
  }
};

/// Throws UserError if the schedule does not fit into a run of `steps` steps.
void check_schedule(const ScheduleSection& schedule, int64_t steps);
/// Throws UserError if any key that depends on the run's length does not fit into `steps` steps.
void check_length(const RunConfig& config, int64_t steps);

}  // namespace dovetail::train
