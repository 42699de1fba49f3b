#include "dovetail/cli/fit/kmeans_predict.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/cli/fit/clusters.h"
#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::cli {
namespace {

/// Returns the table of centres that a run wrote, in float64.
data::Matrix read_centres(const std::filesystem::path& run) {
  const std::filesystem::path file = run / "centres.csv";
  if (!std::filesystem::is_regular_file(file))
    throw UserError(fmt::format("{} holds no finished run of `dovetail kmeans`: there is no {}",
                                run.string(), file.string()),
                    "give the folder that --out named");
  return data::read_matrix(file, {.type = data::MatrixType::kFloat64, .header = "yes"});
}

/// Returns the names in `a` that are not in `b`.
std::vector<std::string> without(const std::vector<std::string>& a,
                                 const std::vector<std::string>& b) {
  std::vector<std::string> names;
  for (const std::string& name : a)
    if (std::ranges::find(b, name) == b.end()) names.push_back(printable(name));
  return names;
}

}  // namespace

nlohmann::ordered_json predict_clusters(const TableOptions& table, const PredictOptions& options) {
  const double start = now_seconds();
  const data::Matrix run = read_centres(options.run);
  const std::shared_ptr<comm::Group> group = table.join();
  const data::Matrix matrix =
      table.read(*group, {.target = options.weights, .target_option = "--weights"});
  const int64_t columns = matrix.x.size(1);
  if (columns != run.x.size(1)) {
    const auto extra = without(matrix.columns, run.columns);
    throw UserError(fmt::format("{} has {} columns, but the run {} has {}: {}", table.data(),
                                columns, options.run, run.x.size(1), fmt::join(run.columns, ", ")),
                    extra.empty() ? "give a table with the columns of the run"
                                  : fmt::format("--drop-columns {} leaves out the others",
                                                fmt::join(extra, ",")));
  }
  const at::Tensor places = places_in(run, matrix.columns, options.run);
  const at::Tensor centres = matrix.shifted(run.x.index_select(1, places)).contiguous();
  const std::shared_ptr<jobs::Workers> workers = table.make_workers(group);
  fit::KMeansData data(matrix.x, workers, matrix.target);
  const double read = now_seconds();
  data.assign(centres);
  const fit::KMeansData::Distances distances = data.distances(centres);
  const at::Tensor labels = data.labels();
  const double done = now_seconds();
  nlohmann::ordered_json workers_json = nlohmann::ordered_json::object();
  table.finish(workers.get(), workers_json);
  if (group->rank() != 0) return nullptr;
  const std::filesystem::path out = options.out.empty() ? std::filesystem::path(options.run) /
                                                              ("predict-" + table.stem() + ".csv")
                                                        : std::filesystem::path(options.out);
  write_labels(out, labels, matrix.left_out, distances.squares.sqrt());
  const at::Tensor counts = at::bincount(labels, {}, centres.size(0));
  const auto* count = counts.const_data_ptr<int64_t>();
  nlohmann::ordered_json json = {{"run", options.run},
                                 {"labels", out.string()},
                                 {"rows", matrix.x.size(0)},
                                 {"columns", columns},
                                 {"bad_values", matrix.num_bad},
                                 {"rows_left_out", matrix.left_out.size()},
                                 {"k", centres.size(0)},
                                 {"inertia", distances.inertia},
                                 {"counts", std::vector<int64_t>(count, count + counts.numel())},
                                 {"seconds", {{"read", read - start}, {"labels", done - read}}}};
  if (!options.weights.empty())
    json.update({{"weights", options.weights}, {"total_weight", data.total_weight()}});
  json.update(workers_json);
  return json;
}

}  // namespace dovetail::cli
