#include "dovetail/train/embedding_tables/config_section.h"

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/schema.h"
#include "dovetail/train/embedding_tables/optimizers.h"

namespace dovetail::train {
namespace {

/// Throws UserError for keys that have no effect with this memory_bytes and policy.
void check_tiers(const EmbeddingSection& embedding) {
  const EmbeddingSection none;
  const auto only_tiers = [&](const char* key, bool given) {
    user_check(!given || embedding.memory_bytes != 0,
               "embedding.{} does nothing with embedding.memory_bytes = 0, where all rows are in "
               "memory; leave it out",
               key);
  };
  only_tiers("policy", embedding.policy != none.policy);
  only_tiers("warmup_steps", embedding.warmup_steps != none.warmup_steps);
  only_tiers("refresh_steps", embedding.refresh_steps != none.refresh_steps);
  only_tiers("step_rows", embedding.step_rows != none.step_rows);
  const bool counts = embedding.policy == "hot";
  user_check(counts || (embedding.warmup_steps == none.warmup_steps &&
                        embedding.refresh_steps == none.refresh_steps),
             "embedding.warmup_steps and refresh_steps do nothing with embedding.policy = \"{}\"; "
             "leave them out",
             embedding.policy);
}

/// Throws UserError for keys that the admission or the eviction does not read.
void check_dynamic(const DynamicSection& dynamic) {
  const DynamicSection none;
  const auto only = [](const char* key, bool given, const char* rule, const std::string& value,
                       const char* reader) {
    user_check(!given || value == reader,
               "embedding.dynamic.{} does nothing with embedding.dynamic.{} = \"{}\"; leave it out",
               key, rule, value);
  };
  only("min_count", dynamic.min_count != none.min_count, "admission", dynamic.admission, "count");
  only("max_candidates", dynamic.max_candidates != none.max_candidates, "admission",
       dynamic.admission, "count");
  only("probability", dynamic.probability != none.probability, "admission", dynamic.admission,
       "probability");
  only("keep_rows", dynamic.keep_rows != none.keep_rows, "eviction", dynamic.eviction, "frequency");
  user_check(dynamic.eviction != "frequency" || dynamic.keep_rows > 0,
             "embedding.dynamic.keep_rows = 0, but eviction = \"frequency\" evicts down to it; "
             "give the rows that stay");
  const bool ages = dynamic.eviction == "age" || dynamic.admission == "count";
  user_check(ages || dynamic.max_age == none.max_age,
             "embedding.dynamic.max_age does nothing without eviction = \"age\" or admission = "
             "\"count\"; leave it out");
  user_check(
      dynamic.eviction != "none" || dynamic.admission == "count" ||
          dynamic.evict_steps == none.evict_steps,
      "embedding.dynamic.evict_steps does nothing without an eviction or candidates; leave it out");
}

}  // namespace

void check_embedding(const RunConfig& config) {
  check_table_optimizers(config.embedding);
  check_tiers(config.embedding);
  check_dynamic(config.embedding.dynamic);
  const bool hashed = std::ranges::any_of(config.rows.sparse, &data::SparseConfig::hashed);
  user_check(hashed || config.embedding.dynamic == DynamicSection(),
             "[embedding.dynamic] does nothing: every feature of rows.sparse has num_rows. Leave "
             "it out, or give a feature max_rows instead");
}

void DynamicSection::describe(Section& s) {
  s.value("admission", admission,
          "Ids that get a row. always: each id. count: an id that has occurred min_count times, in "
          "that same step. probability: each occurrence draws at random")
      .choices({"always", "count", "probability"});
  s.value("min_count", min_count,
          "count: occurrences before an id gets a row, including the current step")
      .range(1, 1e12);
  s.value("max_candidates", max_candidates,
          "count: maximum number of ids of a table that are counted without a row")
      .range(1, 2147483646);
  s.value("probability", probability, "probability: chance of each occurrence to get a row")
      .range(1e-9, 1);
  s.value("eviction", eviction,
          "Rows that leave a table, with their state. age: rows not seen for max_age steps. "
          "frequency: the rarest rows, down to keep_rows; then all counts are halved")
      .choices({"none", "age", "frequency"});
  s.value("evict_steps", evict_steps, "Steps between evictions").unit("steps").range(1, kManySteps);
  s.value("max_age", max_age, "Steps without an occurrence after which a row or a candidate leaves")
      .unit("steps")
      .range(1, kManySteps);
  s.value("keep_rows", keep_rows, "frequency: rows of a table that stay")
      .unit("rows")
      .range(0, 2147483646);
}

void EmbeddingOverride::describe(Section& s) {
  s.value("tables", tables,
          "Names of tables, as in embedding_plan.json: a feature's name, <feature>.wide, "
          "<item>*<sequence>.micro or .input. * stands for any text, ? for any character")
      .required();
  s.value("optimizer", optimizer, "Optimizer of these tables; empty: embedding.optimizer")
      .choices(
          {"", "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"});
  s.value("lr", lr, "Maximum learning rate, as embedding.lr; 0: embedding.lr").range(0, 1e9);
  s.value("momentum", momentum, "Share of the previous update that is kept; -1: embedding.momentum")
      .range(-1, 1);
  s.value("betas", betas, "Decay rates of the first and second moment; empty: embedding.betas")
      .range(0, 1);
  s.value("eps", eps, "Added to the square root, as embedding.eps; 0: embedding.eps").range(0, 1e9);
  s.value("weight_decay", weight_decay, "L2 coefficient; -1: embedding.weight_decay").range(-1, 10);
  s.value("l1", l1, "ftrl: as embedding.l1; -1: embedding.l1").range(-1, 1e9);
  s.value("l2", l2, "ftrl: as embedding.l2; -1: embedding.l2").range(-1, 1e9);
  s.value("beta", beta, "ftrl: as embedding.beta; -1: embedding.beta").range(-1, 1e9);
  s.value("initial_range", initial_range,
          "Bound of initial values; 0: zeros; -1: embedding.initial_range")
      .range(-1, 1e3);
}

void EmbeddingPlacement::describe(Section& s) {
  s.value("tables", tables,
          "Names of tables, as in embedding_plan.json. * stands for any text, ? for any character")
      .required();
  s.value("sharding", sharding, "Placement of these tables on ranks, as embedding.sharding")
      .choices({"row", "table", "column", "replicated"});
}

void EmbeddingSection::describe(Section& s) {
  s.value("pooling", pooling, "Pooling of a bag's rows: their sum or mean")
      .choices({"sum", "mean"});
  s.value("row_dtype", row_dtype,
          "Storage format of rows. bf16 and mxfp8 (E4M3, one scale per 32 elements) are rounded "
          "stochastically in each update. Optimizer state is FP32")
      .choices({"fp32", "bf16", "mxfp8"});
  s.value("optimizer", optimizer,
          "Optimizer of the rows that a step touches. adagrad: Duchi et al. 2011. rowwise_adagrad: "
          "one sum of squares per row, as in FBGEMM. adam: moments of touched rows, as in "
          "torch.optim.SparseAdam. rowwise_adam: adam with one second moment per row. ftrl: "
          "FTRL-Proximal (McMahan et al. 2013)")
      .choices({"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"});
  s.value("lr", lr,
          "Maximum learning rate of the rows. It follows [schedule], but the rate of ftrl is "
          "constant")
      .above(0);
  s.value("momentum", momentum, "momentum: share of the previous update that is kept").range(0, 1);
  s.value("betas", betas, "adam, rowwise_adam: decay rates of the first and second moment")
      .range(0, 1);
  s.value("eps", eps, "Added to the square root of the second moment or of the sum of squares")
      .above(0);
  s.value(
       "weight_decay", weight_decay,
       "L2 coefficient. A step that touches a row adds weight_decay times the row to its gradient")
      .range(0, 10);
  s.value("l1", l1, "ftrl: keeps weights at 0 whose summed gradient is at most this").range(0, 1e9);
  s.value("l2", l2, "ftrl: L2 coefficient").range(0, 1e9);
  s.value("beta", beta, "ftrl: a larger value makes the first steps of a weight smaller")
      .range(0, 1e9);
  s.value("initial_range", initial_range,
          "Initial values are uniform in [-initial_range, initial_range). -1: 1 / sqrt(rows of the "
          "table), as in DLRM")
      .range(-1, 1e3);
  s.list("override", overrides,
         "Tables with another optimizer. The last entry that names a table applies");
  s.value("sharding", sharding,
          "Placement of tables on ranks. auto: whole tables, balanced over the ranks by bytes and "
          "by work; tables that are too large are cut. row: row i on rank i mod n. table: each "
          "table on one rank. column: a range of columns on each rank. replicated: each table on "
          "every rank")
      .choices({"auto", "row", "table", "column", "replicated"});
  s.list("placement", placements,
         "Tables with another sharding. The last entry that names a table applies");
  s.value(
       "rank_bytes", rank_bytes,
       "Maximum bytes of rows and state on each rank. Tables are cut to keep to it. 0: unlimited")
      .unit("bytes")
      .range(0, 1e15);
  s.value("exchange", exchange, "Format in which ranks exchange pooled rows and their gradients")
      .choices({"fp32", "bf16", "mxfp8", "fp8"});
  s.value(
       "transfer", transfer,
       "Rows that ranks exchange in a step. bags: a pooled row for each bag. rows: each distinct "
       "row of a rank's samples once, and one summed gradient for it. auto: for each table the "
       "one with fewer bytes, from the ids of the first batch")
      .choices({"auto", "bags", "rows"});
  s.value("packing", packing,
          "Look up tables with the same layout as one table. Results do not depend on it");
  s.value("groups", groups,
          "Groups of packs. One group is gathered while the previous group is exchanged. auto: the "
          "fastest of 1, 2 and 4, measured in some steps before the first. Results do not depend "
          "on it")
      .range(1, 1024)
      .word("auto", kAuto);
  s.value(
       "memory_bytes", memory_bytes,
       "Memory of each rank for rows and their state, and for the ids of tables with max_rows. "
       "Rows that are used least are stored in files of the run's folder. On a GPU: its memory, "
       "for rows and their state alone. There, other rows are in half of the available RAM if they "
       "fit, else in files. 0: all rows stay in memory. auto: all rows if they fit, else the "
       "memory that remains, measured in some steps before the first. Results do not depend on it")
      .unit("bytes")
      .range(0, 1e15)
      .word("auto", kAuto);
  s.value("policy", policy,
          "Rows that stay in memory_bytes. hot: the most frequent rows, by counting. lru and lfu: "
          "set-associative caches")
      .choices({"hot", "lru", "lfu"});
  s.value("warmup_steps", warmup_steps, "hot: steps that count rows before the first choice")
      .unit("steps")
      .range(1, kManySteps);
  s.value("refresh_steps", refresh_steps, "hot: steps between choices; 0: choose once")
      .unit("steps")
      .range(0, kManySteps);
  s.value(
       "step_rows", step_rows,
       "Room of each table for rows that only one step needs. A step with more rows takes room of "
       "memory_bytes from others. 0: for each table, twice its distinct rows in the first batch")
      .range(0, 1e12);
  s.section("dynamic", dynamic,
            "Admission and eviction of ids in tables without a fixed vocabulary, which have "
            "max_rows in place of num_rows");
}

}  // namespace dovetail::train
