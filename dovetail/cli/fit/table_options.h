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

/// Options of commands that work on the rows of a table: which rows to read, and who computes.
class TableOptions {
 public:
  void declare_data(Arguments& arguments);
  void declare_workers(Arguments& arguments);
  /// Throws UserError for options that exclude each other.
  void check() const;

  /// Returns the nodes of the job, as torchrun started them. All nodes read the table; node 0
  /// writes results.
  std::shared_ptr<comm::Group> join() const;
  /// Sets the number of threads and reads the table, with these options and the command's
  /// `options`. Logs notes, warnings and bad values.
  data::Matrix read(const comm::Group& group, data::MatrixOptions options = {}) const;
  /// Returns the workers that share the rows. Null on a single node without executors: threads of
  /// this process then share the rows equally.
  std::shared_ptr<jobs::Workers> make_workers(const std::shared_ptr<comm::Group>& group) const;
  /// Adds the row counts of nodes and executors to a result, and saves the executors' speeds. All
  /// nodes call this. Does nothing without workers.
  static void finish(jobs::Workers* workers, nlohmann::ordered_json& result);
  /// Returns the figures about nodes and executors in a result, as label and value.
  static std::vector<std::pair<std::string, std::string>> worker_figures(
      const nlohmann::ordered_json& result);

  const std::string& data() const { return data_; }
  /// Returns the name of the table without folder and extension.
  std::string stem() const { return std::filesystem::path(data_).stem().string(); }
  /// Returns these options as they were given on the command line.
  std::string data_words() const, worker_words() const;
  /// Returns data_words, with size and time of the table's file.
  std::string table_words() const;
  bool fresh() const { return fresh_; }

 private:
  std::string data_, columns_, delimiter_, decimal_ = ".", header_, drop_columns_,
                                           bad_values_ = "error", executors_, share_;
  int64_t threads_ = 0, verify_ = 0;
  double timeout_s_ = 0;  ///< 0: not given
  bool fresh_ = false;
};

/// Returns " (N bytes of T)" for a file. The text changes if the file changes. Empty if `name` is
/// no file.
std::string file_words(const std::string& name);

/// Writes rows as text: the columns' names, then "a,b" for each row. If `names` of the rows are
/// given, they are the first column.
void write_table(const std::filesystem::path& path, const std::vector<std::string>& columns,
                 const at::Tensor& rows, const std::vector<std::string>& names = {});

/// Writes a text of "row,label". Rows count from 0 in the file. Rows that were left out have no
/// line.
void write_labels(const std::filesystem::path& path, const at::Tensor& labels,
                  const std::vector<int64_t>& left_out);

}  // namespace dovetail::cli
