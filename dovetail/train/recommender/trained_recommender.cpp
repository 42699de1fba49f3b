#include "dovetail/train/recommender/trained_recommender.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/ops/simd_level.h"
#include "dovetail/train/embedding_tables/checkpoint.h"
#include "dovetail/train/embedding_tables/hashed.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/numerics/model_precision.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::train {
namespace {

constexpr const char *kTensorFile = "model.safetensors", *kJsonFile = "recommender.json",
                     *kFormat = "dovetail.recommender";
constexpr int64_t kVersion = 1;

std::string precision_of_run(const StoredRun& stored) {
  return stored_choice(stored.snapshot.state, "precision").value_or("fp32");
}

std::string weight_name(const embedding::TableSpec& table) {
  return table_tensor(table.name, "weight");
}
std::string keys_name(const embedding::TableSpec& table) {
  return table_tensor(table.name, "keys");
}

/// Tables for lookup only: float32 rows without optimizer state. A table without a fixed vocabulary
/// has one row per stored key, after a row of zeros. Completes the tables in `snapshot` first.
embedding::PackSpec for_lookups(embedding::PackSpec spec, io::Snapshot& snapshot) {
  complete_tables(spec, snapshot.tensors);
  spec.optimizer = {.kind = embedding::OptimizerKind::kSgd};
  spec.row_dtype = embedding::RowDtype::kFloat32;
  for (embedding::TableSpec& table : spec.tables) {
    table.optimizer.reset();
    const auto keys = snapshot.tensors.find(keys_name(table));
    if (table.hashed) table.rows = 1 + (keys == snapshot.tensors.end() ? 0 : keys->second.numel());
  }
  return spec;
}

/// Throws UserError unless the keys ascend as unsigned numbers.
void check_keys(const at::Tensor& keys, const std::string& name,
                const std::filesystem::path& from) {
  user_check(keys.dim() == 1 && keys.scalar_type() == at::kLong,
             "{}: tensor {} is {}, but keys are (rows) int64", from.string(), name,
             ops::describe(keys));
  const auto* key = reinterpret_cast<const uint64_t*>(keys.const_data_ptr<int64_t>());
  user_check(std::is_sorted(key, key + keys.numel(), std::less_equal<>()) || keys.numel() < 2,
             "{}: the keys of tensor {} do not ascend", from.string(), name);
}

/// Decodes rows to float32, one table at a time. Tables are large, so only one extra copy exists.
at::Tensor decoded(const at::Tensor& rows, embedding::RowDtype dtype, int64_t dim) {
  if (rows.scalar_type() != embedding::stored_type(dtype) || rows.dim() != 2 ||
      rows.size(1) != embedding::stored_width(dtype, dim))
    return rows;
  const at::Tensor stored = rows.contiguous();
  at::Tensor values = at::empty({rows.size(0), dim}, at::kFloat);
  const auto* from = static_cast<const char*>(stored.const_data_ptr());
  auto* to = values.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows.size(0); ++row)
    embedding::decode_row(dtype, from + row * embedding::row_bytes(dtype, dim), dim,
                          to + row * dim);
  return values;
}

at::Tensor take(std::map<std::string, at::Tensor>& tensors, const std::string& name,
                const std::filesystem::path& from) {
  const auto found = tensors.find(name);
  user_check(found != tensors.end(), "{}: tensor {} is missing, which the stored config asks for",
             from.string(), name);
  return std::move(tensors.extract(found).mapped());
}

void copy(const at::Tensor& tensor, const std::string& name, const std::filesystem::path& from,
          const at::Tensor& to) {
  user_check(tensor.sizes() == to.sizes() && at::isFloatingType(tensor.scalar_type()),
             "{}: tensor {} is {}, but the stored config asks for {}", from.string(), name,
             ops::describe(tensor), fmt::join(to.sizes(), "x"));
  to.copy_(tensor);
}

}  // namespace

TrainedRecommender::TrainedRecommender(StoredRun stored, const std::string& precision)
    : config_(stored.config),
      trained_in_(precision_of_run(stored)),
      step_(stored.snapshot.step),
      scales_(dense_scales(stored.snapshot.state)),
      model_(models::make_recommender(config_.recommender, recommender_inputs(config_))),
      lookups_(config_),
      tables_(for_lookups(lookups_.pack(), stored.snapshot),
              embedding::PackedTables::Initial::kUnset),
      keys_(lookups_.pack().tables.size()) {
  data::check_scales(config_.rows, scales_, stored.checkpoint.string());
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor>& tensors = stored.snapshot.tensors;
  for (auto& item : model_->named_parameters())
    copy(take(tensors, "model." + item.key(), stored.checkpoint), item.key(), stored.checkpoint,
         item.value().detach());
  for (int64_t t = 0; t < std::ssize(lookups_.pack().tables); ++t) {
    const embedding::TableSpec& table = lookups_.pack().tables[static_cast<size_t>(t)];
    const std::string name = weight_name(table);
    at::Tensor rows = tables_.weight(t);
    if (table.hashed) {
      at::Tensor keys = take(tensors, keys_name(table), stored.checkpoint).contiguous();
      check_keys(keys, keys_name(table), stored.checkpoint);
      keys_[static_cast<size_t>(t)] = keys;
      rows[0].zero_();
      rows = rows.narrow(0, 1, keys.numel());
    }
    copy(decoded(take(tensors, name, stored.checkpoint), lookups_.pack().row_dtype, table.dim),
         name, stored.checkpoint, rows);
  }
  model_->set_compute_dtype(compute_dtype(precision));
  model_->eval();
}

std::string choose_recommender_precision(const StoredRun& stored, const std::string& asked) {
  if (asked.empty()) return precision_of_run(stored);
  if (asked == "float32" || asked == "fp32") return "fp32";
  if (asked == "bf16") return asked;
  throw UserError(fmt::format("--precision {}: a recommender computes in FP32 or BF16", asked),
                  "use float32 or bf16");
}

at::Tensor TrainedRecommender::logits(const data::RowBatch& batch) const {
  const at::NoGradGuard no_grad;
  const embedding::Jagged ids = lookups_.ids(batch);
  return model_
      ->forward(lookups_.model_input(batch.dense, ids, embedding::pool(tables_, rows_of(ids))))
      .logits;
}

embedding::Jagged TrainedRecommender::rows_of(embedding::Jagged ids) const {
  at::Tensor rows = ids.values.clone();
  auto* value = rows.mutable_data_ptr<int64_t>();
  const int64_t* offsets = ids.offsets.const_data_ptr<int64_t>();
  for (int64_t f = 0; f < ids.features; ++f) {
    const at::Tensor& keys =
        keys_[static_cast<size_t>(lookups_.pack().feature_table[static_cast<size_t>(f)])];
    if (!keys.defined()) continue;
    const auto* first = reinterpret_cast<const uint64_t*>(keys.const_data_ptr<int64_t>());
    const auto* last = first + keys.numel();
    for (int64_t i = offsets[f * ids.samples]; i < offsets[(f + 1) * ids.samples]; ++i) {
      const auto key = static_cast<uint64_t>(value[i]);
      const auto* found = std::lower_bound(first, last, key);
      value[i] = found != last && *found == key ? 1 + (found - first) : 0;
    }
  }
  ids.values = rows;
  return ids;
}

std::map<std::string, at::Tensor> TrainedRecommender::tensors() const {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : model_->named_parameters())
    tensors["model." + item.key()] = item.value().detach();
  for (int64_t t = 0; t < std::ssize(lookups_.pack().tables); ++t) {
    const embedding::TableSpec& table = lookups_.pack().tables[static_cast<size_t>(t)];
    const at::Tensor rows = tables_.weight(t);
    tensors[weight_name(table)] = table.hashed ? rows.slice(0, 1) : rows;
    if (table.hashed) tensors[keys_name(table)] = keys_[static_cast<size_t>(t)];
  }
  return tensors;
}

void export_recommender(const TrainedRecommender& recommender,
                        const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  user_check(!error, "cannot make {}: {}", folder.string(), error.message());
  const std::string sha256 = io::write_safetensors(folder / kTensorFile, recommender.tensors());
  RunConfig config = recommender.config();
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"step", recommender.step()},
      {"precision", recommender.trained_in()},
      {"tensors", {{"file", kTensorFile}, {"sha256", sha256}}},
      {"hashing",
       {{"function", "xxh64"},
        {"seed", 0},
        {"cross_separator", "\x1f"},
        {"row", "key mod num_rows, or the key's index in keys if num_rows is 0"}}},
      {"dense_scales", to_json(recommender.scales())},
      {"config", config_to_json([&](Section& s) { config.describe(s); })}};
  write_file_atomically(folder / kJsonFile, json.dump(2) + "\n");
}

bool is_exported_recommender(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kJsonFile);
}

io::Snapshot read_exported_recommender(const std::filesystem::path& folder) try {
  const std::string path = (folder / kJsonFile).string();
  const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  user_check(json.is_object() && json.value("format", "") == kFormat && json.contains("config"),
             "{} is no {}; export the run again: dovetail export RUN --out FOLDER", path, kFormat);
  user_check(json.value("version", int64_t{0}) == kVersion,
             "{} is of version {}, but this program reads {}; export the run again", path,
             json.value("version", int64_t{0}), kVersion);
  const std::filesystem::path tensors = folder / kTensorFile;
  user_check(sha256_of_file(tensors) == json.at("tensors").at("sha256").get<std::string>(),
             "{} is not the file that {} was written with; export the run again", tensors.string(),
             path);
  io::Snapshot snapshot{.step = json.value("step", int64_t{0}), .state = json};
  snapshot.state["tokenizer"] = nullptr;
  const io::SafetensorsFile file(tensors);
  for (const std::string& name : file.names()) snapshot.tensors.emplace(name, file.read(name));
  return snapshot;
} catch (const nlohmann::json::exception& error) {
  throw UserError(
      fmt::format("{} is damaged: {}", (folder / kJsonFile).string(), json_fault(error)),
      "export the run again: dovetail export RUN --out FOLDER");
}

}  // namespace dovetail::train
