#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/data/images/images_config.h"
#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/text/data_config.h"
#include "dovetail/models/config.h"
#include "dovetail/models/recommender_config.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::train {

/// Maximum number of steps that a config key accepts.
inline constexpr double kManySteps = 1e12;

/// Sections of a run's config file, one struct per section. Each member is the key of the same
/// name. docs/config.md describes all keys. `describe` declares a section's keys, defaults, ranges
/// and help texts to the config parser (base/schema/schema.h).
///
/// Section [run].
struct RunSection {
  std::string name = "run";
  std::string folder;  ///< run folder; empty: runs/<name>
  int64_t seed = 1;    ///< seed of initial weights, data order and samples
  /// Folder of another run, or one of its checkpoints. A new run of a recommender takes tables and
  /// dense weights from it, by name. Empty: all begin as initialised.
  std::string start_from;
  /// keep | new: optimizer state of what comes from `start_from`. new: zero, as in a new run.
  std::string start_optimizer = "keep";
  /// auto | cpu | cuda, or executors that share each step: "cuda:0,cpu:8" (jobs::parse_executors).
  std::string device = "auto";
  /// auto | on | off: run forward and backward as one CUDA graph. auto: where a step allows it. on:
  /// throw UserError where it does not.
  std::string cuda_graph = "auto";
  std::string attention = "auto";  ///< auto | flash | cudnn: attention kernel on a GPU
  /// CPU threads of a rank. 0: the cores of this machine divided by its ranks.
  int64_t threads = 0;
  /// Returns true if `device` is neither auto, cpu nor cuda.
  bool names_executors() const { return device != "auto" && device != "cpu" && device != "cuda"; }
  void describe(Section& s);
};

/// Section [train]: length and batch of the run.
struct TrainSection {
  /// kPass: stands for `steps` = "pass" in the config file. kAuto: stands for `micro_batch` =
  /// "auto".
  static constexpr int64_t kPass = 0, kAuto = -1;
  /// Optimizer steps of the run. kPass: one pass over the rows; needs rows.day.
  int64_t steps = 1000;
  int64_t batch = 8;  ///< samples of a step, summed over ranks and micro-batches
  /// Samples that a rank processes at a time (gradient accumulation). 0: all samples of the rank.
  /// kAuto: the fastest size, by measurement; only for recommenders.
  int64_t micro_batch = 0;
  bool checkpoint_activations = false;  ///< recompute each block in backward, keep no activations
  double clip = 1.0;                    ///< maximum global gradient norm; 0: no clipping
  int64_t max_skipped_steps = 3;        ///< maximum non-finite steps in a row before the run stops
  int64_t bucket_bytes = 4194304;       ///< gradient bytes in one all-reduce between ranks
  /// Standard deviation of the noise added to each initial matrix, divided by the standard
  /// deviation of the matrix. 0: no noise.
  double init_noise = 0;
  double time_limit_s = 0;  ///< save and exit with code 0 after this time; 0: no limit
  void describe(Section& s);
};

/// Section [vision]: a convolutional network for images (models/vision.h), in place of a
/// transformer.
struct VisionSection {
  std::string model;     ///< vgg16 | vgg19 | resnet50 | unet; empty: the run trains no vision model
  int64_t classes = 0;   ///< classes of images or pixels. 0: 2 for unet, 1000 for the others
  int64_t channels = 3;  ///< 3: colours; 1: brightness
  int64_t height = 224, width = 224;  ///< pixels to which images are scaled
  int64_t base_width = 64;            ///< channels of the first convolution
  void describe(Section& s);
};

/// Section [optimizer]: AdamW for all weights except embedding tables (EmbeddingSection).
struct OptimizerSection {
  std::string name = "adamw";  ///< adamw only
  double lr = 1e-3;            ///< maximum learning rate, after the warm-up
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< matrices only; norms and biases do not decay
  void describe(Section& s);
};

/// Section [schedule]: learning rate over the run (optimizer/lr_schedule.h).
struct ScheduleSection {
  int64_t warmup_steps = 0;      ///< steps in which the learning rate rises linearly from 0
  std::string decay = "cosine";  ///< cosine | linear | wsd | constant
  double min_lr_ratio = 0.1;     ///< learning rate at the end of the decay / optimizer.lr
  double decay_fraction = 0.2;   ///< wsd: share of the run that decays, at its end
  void describe(Section& s);
};

/// Entry of [[precision.override]]: another recipe for some Linears. The last entry that matches a
/// Linear applies.
struct PrecisionOverride {
  std::vector<std::string> layers;  ///< globs over names of Linears: "blocks.0.*"
  /// Operands of these Linears to which `recipe` applies.
  std::vector<std::string> tensors = {"weight", "activation", "gradient"};
  std::string recipe;  ///< recipe of these operands (mx/recipe.h)
  void describe(Section& s);
};

/// Section [precision]: number formats of training. A recipe names the formats of weights,
/// activations and gradients in the products of Linears (mx/recipe.h).
struct PrecisionSection {
  /// auto | fp32 | bf16 | fp64 (for tests) | a quantizing recipe. Recommenders: the first three.
  std::string recipe = "auto";
  /// emulated | native: matrix products of quantized Linears. emulated: multiply the decoded
  /// numbers, on any device. native: multiply the codes on the GPU by cuBLASLt.
  std::string gemm = "emulated";
  std::vector<PrecisionOverride> overrides;
  std::vector<mx::RecipeSection> recipes;  ///< recipes that the config file defines
  void describe(Section& s);
};

/// Section [memory]: training within a memory budget, by a plan (memory/planned_step.h). To offload
/// a tensor is to copy it to a file and read it back later.
struct MemorySection {
  std::string budget;      ///< maximum memory of a step (plan::parse_budget); empty: no plan
  std::string folder;      ///< folder to offload tensors to; empty: no offload
  std::string host_bytes;  ///< maximum bytes in `folder` (parse_byte_size); empty: no limit
  /// Techniques that a plan may use, out of kTechniques. kAuto: all techniques that do not change
  /// results. PlannedStep::kTechniques describes the others.
  std::vector<std::string> allow = {kAuto};
  static constexpr const char* kAuto = "auto";
  static constexpr std::array<std::string_view, 6> kTechniques = {
      kAuto, "offload", "recompute", "compress", "compress_mxfp8", "algorithms"};
  double solve_s = 30;  ///< time limit of the search for a plan, in seconds
  void describe(Section& s);
  bool operator==(const MemorySection&) const = default;
};

/// Section [checkpoint]: checkpoints in the run's folder.
struct CheckpointSection {
  static constexpr int64_t kEnd = -1;  ///< stands for `every_steps` = "end" in the config file
  /// Steps between checkpoints. The last step is saved as well. kEnd: only the last step. 0: none.
  int64_t every_steps = 500;
  /// Number of newest checkpoints that stay in the run's folder. Checkpoints that they build on
  /// stay, too.
  int64_t keep = 3;
  /// Recommenders: one in this many checkpoints is full. The others are deltas: they hold only
  /// table rows that changed since the previous checkpoint.
  int64_t full_every = 1;
  /// Ranks that write a checkpoint. "all": each rank writes a part. "first": rank 0 gathers all
  /// tensors and writes them.
  std::string writers = "all";
  void describe(Section& s);
};

/// Section [eval]: evaluations on the validation split, during training and at its end.
struct EvalSection {
  int64_t every_steps = 250;  ///< steps between evaluations; 0: only at the end
  /// Maximum validation tokens per evaluation of a GPT during training; 0: all. The evaluation at
  /// the end reads all.
  int64_t max_tokens = 200000;
  /// Maximum validation rows per evaluation of a recommender during training; 0: all. The
  /// evaluation at the end reads all.
  int64_t max_rows = 0;
  void describe(Section& s);
};

/// Section [log]: files that a run writes while it trains (docs/training.md).
struct LogSection {
  bool tensorboard = true;           ///< write event files for TensorBoard
  int64_t quantization_every = 100;  ///< steps between lines of quantization.jsonl; 0: none
  int64_t experts_every = 100;       ///< steps between lines of experts.jsonl; 0: none
  int64_t tables_every = 100;        ///< steps between lines of tables.jsonl; 0: none
  std::vector<int64_t> trace_steps;  ///< steps recorded as Chrome traces, trace-<step>.json
  /// Prompts that the trained model continues at the end, for the report.
  std::vector<std::string> sample_prompts;
  int64_t sample_tokens = 120;  ///< length of each continuation, in tokens
  void describe(Section& s);
};

/// Section [comm]: communication between ranks.
struct CommSection {
  double timeout_s = 60;  ///< time after which a rank that stays silent counts as lost
  void describe(Section& s);
};

/// Section [parallel]: optimizer state and experts that are spread over ranks. `r`, `overlap`,
/// `shadow` and `all_to_all` may be "auto" in the config file: a cost model then chooses them.
struct ParallelSection {
  /// none | optimizer | gradients: state that is divided among ranks. none: each rank has all
  /// state. optimizer: moments and master weights (ZeRO-1). gradients: also the sums of gradients
  /// (ZeRO-2).
  std::string shard = "none";
  int64_t expert = 1;  ///< number of ranks over which the experts of each layer are spread
  /// Number of ranks over which one expert is cut, along its hidden elements. 0: 1, or the minimum
  /// that gives every rank a slice of an expert.
  int64_t expert_tensor = 0;
  /// Number of ranks that process a token's row for one expert together
  /// (moe::ExpertLayout::shards), or kAuto. 0: rows stay on their rank, which gathers all experts.
  int64_t r = 1;
  /// Number of chunks of tokens whose exchange overlaps with computation
  /// (moe::ExpertLayout::overlap), or kAuto.
  int64_t overlap = 1;
  /// linear | 2dh | auto: route of token rows between ranks. linear: from each rank to each other.
  /// 2dh: within nodes first, then between nodes.
  std::string all_to_all = "linear";
  /// Number of experts that every rank copies instead of sending tokens to them. The experts with
  /// the highest recent load are copied. kAuto: the cost model chooses the number.
  int64_t shadow = 0;
  /// `dispatch`: number format in which token rows are sent to experts. `combine`: number format in
  /// which the experts' results are sent back (comm/payload.h).
  std::string dispatch = "unchanged", combine = "unchanged";
  /// Number of neighbouring ranks that form a node, for 2dh and auto. 0: number of ranks on this
  /// machine.
  int64_t ranks_per_node = 0;
  /// File with the cost model (comm/cost_model.h). Empty: if a key is "auto", the ranks measure
  /// their communication costs at the start.
  std::string costs;
  /// Number of steps after which the keys that are kAuto, and the experts to copy (`shadow`), are
  /// chosen anew.
  int64_t choose_every = 100;
  static constexpr int64_t kAuto = -1;
  /// Returns true if ranks divide the optimizer's state among them.
  bool shards() const { return shard != "none"; }
  /// Returns true if the cost model chooses at least one key.
  bool chooses() const {
    return r == kAuto || overlap == kAuto || shadow == kAuto || all_to_all == "auto";
  }
  void describe(Section& s);
  bool operator==(const ParallelSection&) const = default;
};

/// Section [balance]: division of a step's samples among ranks (ranks/batch_shares.h). With a list
/// in run.device: among its executors (jobs/executor_shares.h).
struct BalanceSection {
  /// off: as even as possible. fixed: by `shares`. auto: in proportion to the measured speed of
  /// each rank or executor.
  std::string mode = "off";
  std::vector<int64_t> shares;  ///< for fixed: number of micro-batches of each rank or executor
  /// For auto: shares change only if they reduce a step's predicted compute time by at least this
  /// fraction of it. An executor that saves less is left out.
  double gain = 0.05;
  void describe(Section& s);
  bool operator==(const BalanceSection&) const = default;
};

/// Section [embedding.dynamic]: rules that give ids a row of a hashed table, and evict rows again.
/// A hashed table has no fixed vocabulary: any 64-bit id may get one of its max_rows rows. With
/// `admission` = "count", a candidate is an id that is counted but has no row yet. See
/// embedding/hashed/hashed.h.
struct DynamicSection {
  std::string admission = "always";  ///< rule that gives ids a row: always | count | probability
  int64_t min_count = 2;             ///< for count: occurrences of an id before it gets a row
  int64_t max_candidates = 1000000;  ///< for count: maximum number of candidates of a table
  double probability = 0.1;          ///< for probability: chance of each occurrence to get a row
  std::string eviction = "none";     ///< rule that evicts rows: none | age | frequency
  /// Numbers of steps:
  ///
  /// - `evict_steps`: steps between evictions.
  /// - `max_age`: maximum number of steps since an id last occurred. An eviction removes all older
  ///   candidates. It removes older rows only if `eviction` = "age".
  int64_t evict_steps = 1000, max_age = 100000;
  int64_t keep_rows = 0;  ///< for frequency: number of rows of each table that an eviction leaves
  void describe(Section& s);
  bool operator==(const DynamicSection&) const = default;
};

/// Entry of [[embedding.override]]: another optimizer for some tables. The last entry that names a
/// table applies. A key that the entry does not set has its value from EmbeddingSection.
struct EmbeddingOverride {
  /// Marks a number as not set: the value in EmbeddingSection applies.
  static constexpr double kGeneral = -1;
  std::vector<std::string> tables;  ///< globs over table names
  std::string optimizer;            ///< empty: EmbeddingSection::optimizer
  double lr = 0;                    ///< 0: EmbeddingSection::lr
  double momentum = kGeneral;
  std::vector<double> betas;  ///< empty: EmbeddingSection::betas
  double eps = 0;             ///< 0: EmbeddingSection::eps
  double weight_decay = kGeneral;
  double l1 = kGeneral, l2 = kGeneral, beta = kGeneral;
  double initial_range = kGeneral;
  void describe(Section& s);
};

/// Entry of [[embedding.placement]]: sharding of some tables. The last entry that names a table
/// applies.
struct EmbeddingPlacement {
  std::vector<std::string> tables;  ///< globs over table names
  std::string sharding = "table";   ///< row | table | column | replicated
  void describe(Section& s);
};

/// Section [embedding]: the embedding tables of a recommender. A bag is the list of ids that one
/// feature has in one sample. Its pooled row is the sum or the mean of the table rows of these ids.
struct EmbeddingSection {
  /// Stands for "auto" in `groups` and `memory_bytes`: chosen before the first step, by timing some
  /// steps.
  static constexpr int64_t kAuto = -1;
  std::string pooling = "sum";     ///< pooling of a bag: sum | mean
  std::string row_dtype = "fp32";  ///< storage format of rows: fp32 | bf16 | mxfp8
  std::string optimizer = "rowwise_adagrad";
  /// Maximum learning rate of rows. It follows [schedule] like optimizer.lr, except for ftrl.
  double lr = 0.02;
  double momentum = 0.9;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double l1 = 0, l2 = 0, beta = 1;  ///< for ftrl
  double initial_range = -1;        ///< bound of initial values; -1: 1 / sqrt(rows)
  std::vector<EmbeddingOverride> overrides;
  /// auto | row | table | column | replicated: placement of tables on ranks
  /// (embedding/ranks/table_placement.h).
  std::string sharding = "auto";
  std::vector<EmbeddingPlacement> placements;  ///< tables with another sharding
  /// Maximum bytes of rows and state on each rank. The placement keeps to it. 0: unlimited.
  int64_t rank_bytes = 0;
  /// Format in which ranks exchange pooled rows and their gradients: fp32 | bf16 | mxfp8.
  std::string exchange = "fp32";
  /// auto | bags | rows: rows that ranks exchange, pooled or each distinct one once
  /// (embedding/ranks/table_placement.h).
  std::string transfer = "auto";
  bool packing = true;  ///< look up tables with the same layout as one table
  /// Number of groups into which the tables are divided. One group is looked up while ranks
  /// exchange the rows of the previous group. Results do not depend on this number.
  int64_t groups = 1;
  /// Bytes of memory of a rank for rows and their optimizer state, and for the keys of hashed
  /// tables. Rows that do not fit are in files of the run's folder. 0: all rows are in memory.
  int64_t memory_bytes = 0;
  /// hot | lru | lfu: rule that chooses the rows in memory if not all fit. hot: the rows that were
  /// counted most often.
  std::string policy = "hot";
  /// Numbers of steps and of rows:
  ///
  /// - `warmup_steps` (for hot): steps in which rows are counted before the first choice.
  /// - `refresh_steps` (for hot): steps between choices; 0: only one choice.
  /// - `step_rows`: slots of each table for rows that only one step needs. 0: for each table, twice
  ///   the number of its distinct rows in the first batch.
  int64_t warmup_steps = 100, refresh_steps = 1000, step_rows = 0;
  DynamicSection dynamic;
  void describe(Section& s);
};

/// Kind of model that a run trains.
enum class RunKind { kGpt, kRecommender, kVision };

/// Config of a run. It trains a recommender if recommender.model is set, a vision model if
/// vision.model is set, else a GPT. Each member is the section of the same name in the config file.
struct RunConfig {
  RunSection run;
  models::ModelConfig model;              ///< the transformer of a GPT run
  models::RecommenderConfig recommender;  ///< the model of a recommender run, in place of `model`
  data::RowsConfig rows;  ///< training data of a recommender: rows with features and labels
  EmbeddingSection embedding;
  data::DataConfig data;      ///< training data of a GPT: text
  VisionSection vision;       ///< the model of a vision run, in place of `model`
  data::ImagesConfig images;  ///< training data of a vision model
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
  RunKind kind() const {
    return !recommender.model.empty() ? RunKind::kRecommender
           : !vision.model.empty()    ? RunKind::kVision
                                      : RunKind::kGpt;
  }
  /// Returns the unit in which progress is counted: "token" (GPT) or "sample".
  const char* unit() const { return kind() == RunKind::kGpt ? "token" : "sample"; }
  /// Returns the unit of losses: "token", "sample", or "pixel" for a vision model that learns
  /// masks.
  const char* loss_unit() const { return learns_masks() ? "pixel" : unit(); }
  /// Returns true if targets have a class for each pixel.
  bool learns_masks() const { return vision.model == "unet"; }
  /// Returns what the run trains, for messages: `recommender (recommender.model = "dlrm")`.
  std::string kind_in_words() const;
  /// Returns run.folder, or runs/<run.name> if it is empty.
  std::filesystem::path folder() const {
    return run.folder.empty() ? "runs/" + run.name : run.folder;
  }
};

/// Throws UserError if warm-up and decay do not fit into a run of `steps` steps. Also throws if a
/// key was set that the chosen schedule.decay does not read.
void check_schedule(const ScheduleSection& schedule, int64_t steps);
/// Calls check_schedule, and throws UserError if log.trace_steps names a step after `steps`.
void check_length(const RunConfig& config, int64_t steps);

}  // namespace dovetail::train
