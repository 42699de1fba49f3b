#include "dovetail/train/load_run.h"

#include "dovetail/train/recommender/trained_recommender.h"

namespace dovetail::train {

StoredRun read_stored_run(const std::filesystem::path& path) {
  if (!is_exported_recommender(path)) return read_run_or_checkpoint(path);
  return stored_run(read_exported_recommender(path), path);
}

LoadedModel load_model(const std::filesystem::path& run_or_checkpoint,
                       const std::string& precision) {
  return load_model(read_stored_run(run_or_checkpoint), precision);
}

}  // namespace dovetail::train
