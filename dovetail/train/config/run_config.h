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

namespace dovetail {

struct RunSection {
  std::string name = "run";
  std::string folder;  ///< default runs/<name>
  int64_t seed = 1;
  std::string device = "auto";      ///< auto | cpu | cuda
  std::string cuda_graph = "auto";  ///< auto | on | off
  int64_t threads = 0;              ///< 0: all cores (divided by the ranks of this machine)
  void describe(Section& s);
};

struct TrainSection {
  static constexpr int64_t kPass = 0, kAuto = -1;
  int64_t steps = 1000;  ///< kPass: those of one pass over rows.day
  int64_t batch = 8;     ///< samples of a step over all ranks and micro-batches
  int64_t micro_batch =
      0;  ///< samples at once on a rank; 0: all of the rank's; kAuto: of recommenders, measured
  bool checkpoint_activations = false;
  double clip = 1.0;              ///< global gradient norm; 0: none
  int64_t max_skipped_steps = 3;  ///< non-finite steps in a row before the run stops
  int64_t bucket_bytes = 4194304;
  double init_noise = 0;    ///< added to the initial matrices, as a share of their deviation
  double time_limit_s = 0;  ///< stop (save, exit 0) after this long; 0: none
  void describe(Section& s);
};

struct OptimizerSection {
  std::string name = "adamw";
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< matrices only; norms and biases have none
  void describe(Section& s);
};

struct ScheduleSection {
  int64_t warmup_steps = 0;
  std::string decay = "cosine";  ///< cosine | linear | wsd | constant
  double min_lr_ratio = 0.1;
  double decay_fraction = 0.2;  ///< wsd: the last part of the run that decays
  void describe(Section& s);
};

/// Another recipe for some Linears.
struct PrecisionOverride {
  std::vector<std::string> layers;  ///< globs over the names of Linears
  std::vector<std::string> tensors = {"weight", "activation", "gradient"};
  std::string recipe;
  void describe(Section& s);
};

struct PrecisionSection {
  std::string recipe = "auto";  ///< auto | fp32 | bf16 | fp64 (exactness tests) | a quantizing one
  std::string gemm = "emulated";  ///< emulated | native
  std::vector<PrecisionOverride> overrides;
  std::vector<mx::RecipeSection> recipes;
  void describe(Section& s);
};

/// Training within a memory budget (train/memory/planned_step.h).
struct MemorySection {
  std::string budget;      ///< plan::parse_budget; empty: none
  std::string folder;      ///< where tensors are offloaded to; empty: nothing is
  std::string host_bytes;  ///< parse_byte_size: limit of what lies in `folder`; empty: none
  std::vector<std::string> allow = {
      kAuto};  ///< PlannedStep::kTechniques, or all that change no result
  static constexpr const char* kAuto = "auto";
  double solve_s = 30;
  void describe(Section& s);
  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  int64_t every_steps = 500;  ///< 0: only at the end
  int64_t keep = 3;
  int64_t full_every = 1;  ///< of a recommender: the checkpoints between hold what changed
  void describe(Section& s);
};

struct EvalSection {
  int64_t every_steps = 250;  ///< 0: only at the end
  int64_t max_tokens =
      200000;  ///< of the validation split while training; the last evaluation reads all (0: all)
  int64_t max_rows = 0;  ///< the same of a recommender's
  void describe(Section& s);
};

struct LogSection {
  bool tensorboard = true;
  int64_t quantization_every = 100;         ///< steps between lines of quantization.jsonl; 0: none
  int64_t experts_every = 100;              ///< steps between lines of experts.jsonl; 0: none
  int64_t tables_every = 100;               ///< steps between lines of tables.jsonl; 0: none
  std::vector<int64_t> trace_steps;         ///< steps recorded to trace-<step>.json
  std::vector<std::string> sample_prompts;  ///< continued at the end, into the report
  int64_t sample_tokens = 120;
  void describe(Section& s);
};

struct CommSection {
  double timeout_s = 60;
  void describe(Section& s);
};

struct ParallelSection {
  std::string shard =
      "none";          ///< none | optimizer | gradients: what a rank keeps its share of alone
  int64_t expert = 1;  ///< ranks that the experts of every layer are spread over
  int64_t expert_tensor =
      0;  ///< ranks that one expert is cut over; 0: 1, or as many as it takes to give all an expert
  int64_t r = 1;                      ///< as moe::Plan::shards; kAuto
  int64_t overlap = 1;                ///< as moe::Plan's; kAuto
  std::string all_to_all = "linear";  ///< linear | 2dh | auto
  int64_t shadow = 0;  ///< experts of the most recent load that every rank gathers; kAuto
  std::string dispatch = "unchanged", combine = "unchanged";  ///< payloads
  int64_t ranks_per_node = 0;                                 ///< 0: those of this machine
  std::string costs;  ///< file of a cost model; empty: measured where something is chosen
  int64_t choose_every = 100;
  static constexpr int64_t kAuto = -1;
  bool shards() const { return shard != "none"; }
  bool chooses() const {
    return r == kAuto || overlap == kAuto || shadow == kAuto || all_to_all == "auto";
  }
  void describe(Section& s);
  bool operator==(const ParallelSection&) const = default;
};

/// What each rank gets of a step (train/ranks/batch_shares.h).
struct BalanceSection {
  std::string mode = "off";     ///< off | fixed | auto
  std::vector<int64_t> shares;  ///< fixed: micro-batches of each rank
  double gain = 0.05;           ///< auto: by which a step must become shorter for shares to move
  void describe(Section& s);
  bool operator==(const BalanceSection&) const = default;
};

/// Tables without a fixed vocabulary: which ids get a row, and which lose it
/// (embedding/hashed/hashed.h).
struct DynamicSection {
  std::string admission = "always";  ///< always | count | probability
  int64_t min_count = 2;
  int64_t max_candidates = 1000000;  ///< of a table
  double probability = 0.1;
  std::string eviction = "none";  ///< none | age | frequency
  int64_t evict_steps = 1000, max_age = 100000;
  int64_t keep_rows = 0;  ///< of a table
  void describe(Section& s);
  bool operator==(const DynamicSection&) const = default;
};

/// Another optimizer for some tables; what it leaves out is the general one's.
struct EmbeddingOverride {
  static constexpr double kGeneral = -1;
  std::vector<std::string> tables;  ///< globs over their names
  std::string optimizer;            ///< empty: the general one
  double lr = 0;                    ///< 0: the general one
  double momentum = kGeneral;
  std::vector<double> betas;  ///< empty: the general ones
  double eps = 0;             ///< 0: the general one
  double weight_decay = kGeneral;
  void describe(Section& s);
};

/// The tables of a recommender.
struct EmbeddingSection {
  static constexpr int64_t kAuto = -1;  ///< measured in some steps before the first
  std::string pooling = "sum";          ///< of the ids of a bag: sum | mean
  std::string row_dtype = "fp32";       ///< fp32 | bf16 | mxfp8
  std::string optimizer = "rowwise_adagrad";
  double lr = 0.02;  ///< the highest, as optimizer.lr is of the dense part; both follow [schedule]
  double momentum = 0.9;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  std::vector<EmbeddingOverride> overrides;
  std::string sharding = "auto";  ///< auto | row | table | column | replicated
  std::string exchange =
      "fp32";  ///< of pooled rows and their gradients between ranks: fp32 | bf16 | mxfp8
  bool packing = true;
  int64_t groups = 1;
  int64_t memory_bytes =
      0;  ///< of a rank for rows and state, the others on the disk; 0: all in memory
  std::string policy = "hot";
  int64_t warmup_steps = 100, refresh_steps = 1000, step_rows = 0;
  DynamicSection dynamic;
  void describe(Section& s);
};

struct RunConfig {
  RunSection run;
  ModelConfig model;
  RecommenderConfig recommender;  ///< of a run that trains one; then there is no [model]
  RowsConfig rows;
  EmbeddingSection embedding;
  DataConfig data;
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
  /// What steps and losses count: "token" or "sample".
  const char* unit() const { return recommends() ? "sample" : "token"; }
  std::filesystem::path folder() const {
    return run.folder.empty() ? "runs/" + run.name : run.folder;
  }
};

/// Throws UserError if the schedule does not fit into a run of so many steps.
void check_schedule(const ScheduleSection& schedule, int64_t steps);
/// The same for all keys that depend on the length of a run.
void check_length(const RunConfig& config, int64_t steps);

}  // namespace dovetail
