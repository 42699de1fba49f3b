#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/trainer.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::test {

/// Text that a small model can learn from: words of a fixed list in random order.
inline std::string some_text(int words) {
  static const char* const kWords[] = {"two ",     "gears ", "mesh ", "and ",
                                       "neither ", "waits ", "for ",  "the ",
                                       "other.\n", "while ", "data ", "flows "};
  std::string text;
  for (int i = 0; i < words; ++i) {
    text +=
        kWords[random_below(7, RandomStream::kTest, static_cast<uint64_t>(i), std::size(kWords))];
  }
  return text;
}

/// Run of a model with about 20 k parameters on bytes, in a temporary folder. It uses one thread,
/// so that several ranks can share a machine.
class TinyRun {
 public:
  TinyRun() { write_file_atomically(folder_ / "text.txt", some_text(4000)); }

  train::RunConfig config(const std::string& name = "run") const {
    train::RunConfig config;
    config.run.name = name;
    config.run.folder = (folder_ / name).string();
    config.run.device = "cpu";
    config.run.threads = 1;
    config.data.text = {(folder_ / "text.txt").string()};
    config.data.path = (folder_ / "data").string();
    config.data.validation_split = "tail";
    config.data.validation_fraction = 0.1;
    config.model.layers = 2;
    config.model.width = 32;
    config.model.heads = 2;
    config.model.context = 16;
    config.train.steps = 12;
    config.train.batch = 4;
    config.precision.recipe = "fp32";
    config.checkpoint.every_steps = train::CheckpointSection::kEnd;
    config.eval.every_steps = 0;
    config.log.tensorboard = false;
    return config;
  }

  std::filesystem::path file(const std::string& run, const std::string& name) const {
    return folder_ / run / name;
  }
  std::string read(const std::string& run, const std::string& name) const {
    return read_file(file(run, name).string());
  }

  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::istringstream in(read(run, "metrics.jsonl"));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

 private:
  TemporaryFolder folder_;
};

inline train::TrainResult train_alone(const train::RunConfig& config,
                                      train::TrainOptions options = {}) {
  options.quiet = true;
  return train::train(config, comm::local_groups(1)[0], options);
}

}  // namespace dovetail::test
