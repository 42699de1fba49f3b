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
#include "dovetail/jobs/nodes.h"

namespace dovetail::cli {

/// Options that `dovetail kmeans` and `dovetail fit` share. Some select the table to read, others
/// the threads and GPUs that compute. A job may run on several nodes (processes, started by
/// torchrun). An executor is a group of CPU threads or a GPU (jobs/runtime.h).
class TableOptions {
 public:
  /// Declares the options of the table: --data, --columns and so on.
  void declare_data(Arguments& arguments);
  /// Declares the options of the computation: --threads, --executors, --fresh and so on.
  void declare_workers(Arguments& arguments);
  /// Throws UserError for options that exclude each other.
  void check() const;

  /// Returns the group of all nodes that torchrun started for this job. All nodes read the table;
  /// node 0 writes results.
  std::shared_ptr<comm::Group> join() const;
  /// Sets the number of threads of this process and reads the table. Members of `options` for which
  /// the command line has an option are overwritten, except `columns`. If `columns` is not empty,
  /// --columns and --drop-columns are refused. Node 0 logs notes, warnings and bad values of the
  /// table.
  data::Matrix read(const comm::Group& group, data::MatrixOptions options = {}) const;
  /// Returns the object that runs tasks on the executors of --executors, or on several nodes. Null
  /// on a single node without --executors: tasks then run on the threads of this process.
  std::shared_ptr<jobs::Workers> make_workers(const std::shared_ptr<comm::Group>& group) const;
  /// Returns the executors of this process; null if there are none.
  static jobs::Runtime* executors_of(jobs::Workers* workers);
  /// Adds to `result` the rows, speed and seconds of each node and executor. Saves the measured
  /// speeds of executors for later processes. Writes the file of --trace, which make_workers began.
  /// All nodes call it. `workers` may be null.
  void finish(jobs::Workers* workers, nlohmann::ordered_json& result) const;
  /// Returns the figures that `finish` added to `result`, as label and value, to print.
  static std::vector<std::pair<std::string, std::string>> worker_figures(
      const nlohmann::ordered_json& result);

  /// Returns the value of --data.
  const std::string& data() const { return data_; }
  /// Returns the name of the table's file without folder and extension.
  std::string stem() const { return std::filesystem::path(data_).stem().string(); }
  /// Return options in the form of a command line: `data_words` the options of declare_data,
  /// `worker_words` the options of declare_workers. Omit options with their default value, except
  /// --bad-values.
  std::string data_words() const, worker_words() const;
  /// Returns a text that identifies the table: data_words(), plus the file's size and modification
  /// time.
  std::string table_words() const;
  /// Returns true if --fresh was given: a stopped job starts over.
  bool fresh() const { return fresh_; }

 private:
  std::filesystem::path trace_file(jobs::Nodes* nodes) const;

  std::string trace_;
  std::string data_, columns_, delimiter_, decimal_ = ".", header_, drop_columns_,
                                           bad_values_ = "error", executors_, share_;
  int64_t threads_ = 0, verify_ = 0;
  double timeout_s_ = 0;  ///< 0: not given
  bool fresh_ = false;
};

/// Returns the text " (N bytes of T)" for file `name`: N is its size, T its modification time. So
/// the text changes if the file changes. Returns "" if `name` is no file.
std::string file_words(const std::string& name);

/// Writes a CSV file. The first line has the names of the columns. Each further line has a row of
/// `rows` (N, D) float64. If `names` is not empty, its N names are an additional first column.
void write_table(const std::filesystem::path& path, const std::vector<std::string>& columns,
                 const at::Tensor& rows, const std::vector<std::string>& names = {});

/// Writes a CSV file with columns row and label, and distance if `distances` float64 is given.
/// `labels` are int32. Row numbers count the rows of the table's file from 0. `left_out` holds the
/// numbers of the rows without a label, ascending. The file has no line for them.
void write_labels(const std::filesystem::path& path, const at::Tensor& labels,
                  const std::vector<int64_t>& left_out, const at::Tensor& distances = {});

}  // namespace dovetail::cli
