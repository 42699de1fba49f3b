#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/cli/parse/command.h"
#include "dovetail/comm/group.h"
#include "dovetail/data/matrix/matrix.h"
#include "dovetail/jobs/workers.h"

namespace dovetail::cli {

/// The options of commands that work on the rows of a table: which rows, and who computes.
class TableOptions {
 public:
  void declare_data(Arguments& arguments);
  void declare_workers(Arguments& arguments);
  /// UserError for options that do not go together.
  void check() const;

  /// The nodes of the job, as torchrun started them; all read the table, and node 0 writes results.
  std::shared_ptr<Group> join() const;
  /// Sets the number of threads and reads the table, with these options and the command's. Notes,
  /// warnings and bad values are in the log.
  Matrix read(const Group& group, MatrixOptions options = {}) const;
  /// Null on a single node without executors: this process' threads share the rows alike.
  std::shared_ptr<jobs::Workers> make_workers(const std::shared_ptr<Group>& group) const;
  /// Adds the rows of nodes and executors to a result, and keeps the executors' speeds. Called by
  /// all nodes. Does nothing without workers.
  static void finish(jobs::Workers* workers, nlohmann::ordered_json& result);
  /// What such a result says of its nodes and executors, as label and value.
  static std::vector<std::pair<std::string, std::string>> worker_figures(
      const nlohmann::ordered_json& result);

  const std::string& data() const { return data_; }
  /// The name of the table without folder and extension.
  std::string stem() const { return std::filesystem::path(data_).stem().string(); }
  /// These options as they were given.
  std::string data_words() const, worker_words() const;
  /// data_words, and which table was there.
  std::string table_words() const;
  bool fresh() const { return fresh_; }

 private:
  std::string data_, columns_, delimiter_, decimal_ = ".", header_, drop_columns_,
                                           bad_values_ = "error", executors_, share_;
  int64_t threads_ = 0, verify_ = 0;
  double timeout_s_ = 0;  ///< not given
  bool fresh_ = false;
};

/// " (N bytes of T)", which changes with a file; empty where `name` is none.
std::string file_words(const std::string& name);

/// The rows as text, "a,b" after the columns' names; `names` of the rows, if any, are the first
/// column.
void write_table(const std::filesystem::path& path, const std::vector<std::string>& columns,
                 const at::Tensor& rows, const std::vector<std::string>& names = {});

/// "row,label": rows of the file from 0; those that were left out have no line.
void write_labels(const std::filesystem::path& path, const at::Tensor& labels,
                  const std::vector<int64_t>& left_out);

}  // namespace dovetail::cli
