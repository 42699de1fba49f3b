#pragma once

#include <fmt/format.h>

#include <string>

#include "tests/train/clicks.h"

namespace dovetail::test {

constexpr int64_t kEvents = 6;

/// Generates rows with viewed items, viewing times and a candidate item. A click is more likely if
/// the candidate was viewed for long. Without the item, viewing times predict no click.
inline std::string histories(int rows) {
  const auto draw = [](uint64_t key, uint64_t i, uint64_t below) {
    return random_below(key, RandomStream::kTest, i, below);
  };
  std::string text = "item\tlooked\tlong\tclicked\n";
  for (int i = 0; i < rows; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const uint64_t item = draw(1, at, 8), events = draw(2, at, kEvents + 1);
    std::string looked, how_long;
    bool likes = false;
    for (uint64_t e = 0; e < events; ++e) {
      const uint64_t other = draw(3, at * kEvents + e, 8), time = draw(4, at * kEvents + e, 2);
      looked += fmt::format("{}i{}", e == 0 ? "" : "|", other);
      how_long += fmt::format("{}{}", e == 0 ? "" : "|", time);
      likes = likes || (other == item && time == 1);
    }
    text += fmt::format("i{}\t{}\t{}\t{:d}\n", item, looked, how_long,
                        draw(5, at, 10) < (likes ? 9 : 1));
  }
  return text;
}

class Histories : public Clicks {
 public:
  Histories() { write_file_atomically(file("", "histories.tsv"), histories(8000)); }

  train::RunConfig config(const std::string& model, const std::string& name = "run") const {
    train::RunConfig config = Clicks::config(model, name);
    config.rows.files = {file("", "histories.tsv").string()};
    config.rows.dense = {};
    config.rows.sparse = {{.columns = {"item"}, .num_rows = 20},
                          {.columns = {"looked"},
                           .num_rows = 20,
                           .separator = "|",
                           .max_length = kEvents,
                           .sequence = true,
                           .table = "item"},
                          {.columns = {"long"},
                           .num_rows = 9,
                           .separator = "|",
                           .max_length = kEvents,
                           .sequence = true}};
    config.recommender.deep = {32};
    config.train.steps = 300;
    config.eval.every_steps = 0;
    if (model == "dien") config.recommender.auxiliary = {16};
    if (model == "can") {
      config.recommender.micro = {8, 4};
      config.recommender.co_action = {"item * looked", "item * long"};
    }
    return config;
  }
};

}  // namespace dovetail::test
