// One side of bench/rows.py: reads the rows of a config on request. It reads commands from its
// input, one a line, and answers each with one line of JSON, {"seconds": ..., "rows": ...}:
//   decode   opens the files and decodes every row on `threads` threads, as the first pass of
//   training does, without
//            its statistics
//   scan     the same with statistics: what RowLoader does before the first step
//   batches  an epoch of batches of 4096 rows out of decoded rows that are kept, shuffled among all
//
// layer: data
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <iostream>
#include <string>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/data/rows/row_loader.h"

namespace dovetail {
namespace {

int64_t decode(const data::RowsConfig& config) {
  const data::RowReader reader(config);
  std::atomic<int64_t> next = 0, rows = 0;
  const auto work = [&] {
    for (int64_t b = next++; b < reader.num_blocks(); b = next++) rows += reader.read(b).num_rows;
  };
  std::vector<std::jthread> threads;
  for (int64_t t = 1; t < config.threads; ++t) threads.emplace_back(work);
  work();
  threads.clear();
  return rows;
}

int64_t scan(const data::RowsConfig& config) {
  const data::RowReader reader(config);
  const data::RowStatistics statistics = data::scan_rows(config, reader).statistics;
  return statistics.train_rows + statistics.validation_rows;
}

/// Every step makes the next ones ahead: the rows of an epoch are those between two equal places in
/// that.
int64_t batches(data::RowLoader& loader, int64_t batch, int64_t& step) {
  const int64_t steps = std::max<int64_t>(1, loader.num_train_rows() / batch);
  for (int64_t i = 0; i < steps; ++i) loader.step(step++);
  return steps * batch;
}

void serve(const data::RowsConfig& config) {
  keep_freed_memory();
  constexpr int64_t kBatch = 4096;
  data::RowLoader loader(config, {.seed = 1, .batch = kBatch});
  int64_t step = 0;
  for (std::string command; std::getline(std::cin, command);) {
    const double begin = now_seconds();
    int64_t rows = 0;
    if (command == "decode") rows = decode(config);
    if (command == "scan") rows = scan(config);
    if (command == "batches") rows = batches(loader, kBatch, step);
    user_check(rows > 0, "no command `{}`", command);
    std::cout << fmt::format("{{\"seconds\": {}, \"rows\": {}}}", now_seconds() - begin, rows)
              << std::endl;
  }
}

}  // namespace
}  // namespace dovetail

int main(int argc, char** argv) {
  CLI::App app("Reads rows on request");
  std::string path;
  app.add_option("config", path, "TOML with a table [rows]")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    dovetail::data::RowsConfig config;
    dovetail::load_config([&](dovetail::Section& s) { s.section("rows", config, "Rows"); }, path);
    dovetail::serve(config);
  } catch (const dovetail::UserError& e) {
    std::cerr << dovetail::describe_error(e) << '\n';
    return 2;
  }
  return 0;
}
