#include "dovetail/train/embedding_section.h"

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/schema.h"
#include "dovetail/train/table_optimizers.h"

namespace dovetail {
namespace {

/// Keys of memory_bytes.
void check_tiers(const EmbeddingSection& embedding) {
  const EmbeddingSection none;
  const auto only_tiers = [&](const char* key, bool given) {
    user_check(!given || embedding.memory_bytes != 0,
               "embedding.{} does nothing with embedding.memory_bytes = 0, where all rows are in memory; leave it out",
               key);
  };
  only_tiers("policy", embedding.policy != none.policy);
  only_tiers("warmup_steps", embedding.warmup_steps != none.warmup_steps);
  only_tiers("refresh_steps", embedding.refresh_steps != none.refresh_steps);
  only_tiers("step_rows", embedding.step_rows != none.step_rows);
  const bool counts = embedding.policy == "hot";
  user_check(counts || (embedding.warmup_steps == none.warmup_steps && embedding.refresh_steps == none.refresh_steps),
             "embedding.warmup_steps and refresh_steps do nothing with embedding.policy = \"{}\"; leave them out",
             embedding.policy);
}

/// Throws UserError for keys that the admission or the eviction does not read.
void check_dynamic(const DynamicSection& dynamic) {
  const DynamicSection none;
  const auto only = [](const char* key, bool given, const char* rule, const std::string& value, const char* reader) {
    user_check(!given || value == reader,
               "embedding.dynamic.{} does nothing with embedding.dynamic.{} = \"{}\"; leave it out", key, rule, value);
  };
  only("min_count", dynamic.min_count != none.min_count, "admission", dynamic.admission, "count");
  only("max_candidates", dynamic.max_candidates != none.max_candidates, "admission", dynamic.admission, "count");
  only("probability", dynamic.probability != none.probability, "admission", dynamic.admission, "probability");
  only("keep_rows", dynamic.keep_rows != none.keep_rows, "eviction", dynamic.eviction, "frequency");
  user_check(
      dynamic.eviction != "frequency" || dynamic.keep_rows > 0,
      "embedding.dynamic.keep_rows = 0, but eviction = \"frequency\" evicts down to it; give the rows that stay");
  const bool ages = dynamic.eviction == "age" || dynamic.admission == "count";
  user_check(
      ages || dynamic.max_age == none.max_age,
      "embedding.dynamic.max_age does nothing without eviction = \"age\" or admission = \"count\"; leave it out");
  user_check(dynamic.eviction != "none" || dynamic.admission == "count" || dynamic.evict_steps == none.evict_steps,
             "embedding.dynamic.evict_steps does nothing without an eviction or candidates; leave it out");
}

}  // namespace

void check_embedding(const RunConfig& config) {
  check_table_optimizers(config.embedding);
  check_tiers(config.embedding);
  check_dynamic(config.embedding.dynamic);
  const bool hashed = std::ranges::any_of(config.rows.sparse, &SparseConfig::hashed);
  user_check(hashed || config.embedding.dynamic == DynamicSection(),
             "[embedding.dynamic] does nothing: every feature of rows.sparse has num_rows; leave it out, or give one "
             "max_rows in its place");
}

void DynamicSection::describe(Section& s) {
  s.value(
       "admission", admission,
       "Which ids get a row: always (each), count (in the step in which it has occurred min_count times), probability "
       "(each occurrence draws)")
      .choices({"always", "count", "probability"});
  s.value("min_count", min_count, "count: occurrences, those of the step counted").range(1, 1e12);
  s.value("max_candidates", max_candidates, "count: ids of a table that are counted without having a row")
      .range(1, 2147483646);
  s.value("probability", probability, "probability: of an occurrence").range(1e-9, 1);
  s.value("eviction", eviction,
          "Which rows leave, with their state: none, age (not seen for max_age steps), frequency (the rarest, down to "
          "keep_rows; then all counts are halved)")
      .choices({"none", "age", "frequency"});
  s.value("evict_steps", evict_steps, "Steps between evictions").unit("steps").range(1, kManySteps);
  s.value("max_age", max_age, "Steps after which a row, or a candidate, that was not seen leaves")
      .unit("steps")
      .range(1, kManySteps);
  s.value("keep_rows", keep_rows, "frequency: rows of a table that stay").unit("rows").range(0, 2147483646);
}

void EmbeddingOverride::describe(Section& s) {
  s.value("tables", tables,
          "Names of tables, as embedding_plan.json has them: a feature's, <feature>.wide, <item>*<sequence>.micro or "
          ".input; * and ? stand for any text and character")
      .required();
  s.value("optimizer", optimizer, "As embedding.optimizer; empty: that")
      .choices({"", "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"});
  s.value("lr", lr, "Highest learning rate; it follows [schedule]; 0: embedding.lr").range(0, 1e9);
  s.value("momentum", momentum, "As embedding.momentum; -1: that").range(-1, 1);
  s.value("betas", betas, "As embedding.betas; empty: those").range(0, 1);
  s.value("eps", eps, "As embedding.eps; 0: that").range(0, 1e9);
  s.value("weight_decay", weight_decay, "As embedding.weight_decay; -1: that").range(-1, 10);
}

void EmbeddingSection::describe(Section& s) {
  s.value("pooling", pooling, "The ids of a bag: their rows' sum or mean").choices({"sum", "mean"});
  s.value(
       "row_dtype", row_dtype,
       "How rows are stored; bf16 and mxfp8 (E4M3, a scale for 32 elements) are rounded stochastically when they are "
       "updated. Their optimizer's state is FP32")
      .choices({"fp32", "bf16", "mxfp8"});
  s.value("optimizer", optimizer,
          "Of the rows that a step touches: sgd, momentum, adagrad (Duchi et al. 2011), rowwise_adagrad (one sum of "
          "squares per row, as FBGEMM), adam (moments of touched rows, as torch.optim.SparseAdam)")
      .choices({"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"});
  s.value("lr", lr, "Highest learning rate of the rows; it follows [schedule]").above(0);
  s.value("momentum", momentum, "momentum: share of the last update that is kept").range(0, 1);
  s.value("betas", betas, "adam: decay rates of the first and second moment").range(0, 1);
  s.value("eps", eps, "Added to the square root of the second moment or of the sum of squares").above(0);
  s.value("weight_decay", weight_decay, "Times the row, added to its gradient (L2) in steps that touch it")
      .range(0, 10);
  s.list("override", overrides, "Tables with another optimizer; the last that names a table decides");
  s.value(
       "sharding", sharding,
       "How tables lie on ranks: auto (whole ones balanced over the ranks, those too large for that cut), row (row i "
       "on rank i mod n), table (whole), column (a range of columns on each), replicated (whole on every rank)")
      .choices({"auto", "row", "table", "column", "replicated"});
  s.value("exchange", exchange, "How pooled rows and their gradients travel between ranks")
      .choices({"fp32", "bf16", "mxfp8"});
  s.value("packing", packing, "Whether tables that lie alike are looked up as one; results do not depend on it");
  s.value("groups", groups,
          "Groups of packs, of which one is gathered while the one before is exchanged; results do not depend on it. "
          "auto: the fastest of 1, 2 and 4 in some steps before the first")
      .range(1, 1024)
      .word("auto", kAuto);
  s.value(
       "memory_bytes", memory_bytes,
       "Memory of a rank for rows and their state; the rows that are used least are in files of the run's folder. 0: "
       "all in memory; auto: all if they fit beside what some steps before the first were seen to need, else what is "
       "left. Results do not depend on it")
      .unit("bytes")
      .range(0, 1e15)
      .word("auto", kAuto);
  s.value("policy", policy,
          "Which rows stay in memory_bytes: hot (the most frequent, counted), lru or lfu (set-associative)")
      .choices({"hot", "lru", "lfu"});
  s.value("warmup_steps", warmup_steps, "hot: steps that are counted before rows are chosen")
      .unit("steps")
      .range(1, kManySteps);
  s.value("refresh_steps", refresh_steps, "hot: steps between choices; 0: chosen once")
      .unit("steps")
      .range(0, kManySteps);
  s.value("step_rows", step_rows,
          "Most distinct rows of a table that one step brings in from the disk; 0: twice what the first batch has")
      .range(0, 1e12);
  s.section("dynamic", dynamic, "Tables without a fixed vocabulary (num_rows = 0): which ids get a row");
}

}  // namespace dovetail
