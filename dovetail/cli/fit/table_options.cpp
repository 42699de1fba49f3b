#include "dovetail/cli/fit/table_options.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "dovetail/base/cache_folder.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/cli/parse/output.h"

namespace dovetail::cli {
namespace {

const std::map<std::string, data::BadValues> kBadValues = {{"zero", data::BadValues::kZero},
                                                           {"skip", data::BadValues::kSkip},
                                                           {"error", data::BadValues::kError}};

/// Splits "a,b" into names. A name with a comma is in quotes: a,"b,c".
std::vector<std::string> parse_names(const char* option, const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; !text.empty() && at <= text.size(); ++at) {
    const bool quoted =
        text.size() > at && text[at] == '"' && text.find('"', at + 1) != std::string::npos;
    const size_t begin = quoted ? at + 1 : at;
    const size_t end = quoted ? text.find('"', begin) : std::min(text.find(',', at), text.size());
    names.push_back(text.substr(begin, end - begin));
    at = quoted ? end + 1 : end;
    if (at < text.size() && text[at] != ',')
      throw UserError(fmt::format("{}: {} has text after a closing quote", option, printable(text)),
                      R"(for example: a,"b,c",7)");
  }
  return names;
}

nlohmann::ordered_json executors_json(const jobs::Runtime& runtime) {
  auto list = nlohmann::ordered_json::array();
  const std::vector<jobs::Runtime::Report> reports = runtime.report();
  int64_t rows = 0;
  for (const auto& report : reports) rows += report.rows;
  const auto rate = [](const jobs::Runtime::Report& report) {
    const double seconds = report.busy_s / static_cast<double>(report.threads);
    return seconds > 0 ? static_cast<double>(report.rows) / seconds : 0.0;
  };
  for (const auto& report : reports) {
    list.push_back({{"name", report.name},
                    {"rows", report.rows},
                    {"share", static_cast<double>(report.rows) /
                                  static_cast<double>(std::max<int64_t>(1, rows))},
                    {"busy_s", report.busy_s},
                    {"copy_s", report.copy_s},
                    {"idle_s", report.idle_s},
                    {"rows_per_s", rate(report)}});
    if (rate(reports[0]) > 0) list.back()["alpha"] = rate(report) / rate(reports[0]);
    if (report.left_out) list.back()["left_out"] = *report.left_out;
  }
  return list;
}

}  // namespace

void TableOptions::declare_data(Arguments& arguments) {
  arguments
      .option("--data", "FILE", &data_,
              "Table: Parquet, .npy, .npz (FILE:NAME) or text with a delimiter or blanks; gzip, "
              "zstd and bzip2 are unpacked")
      .is_required()
      .completes(Completion::kFile);
  arguments.option("--columns", "LIST", &columns_,
                   "Columns to read, by name or place, such as a,b,7 (all but an index of pandas)");
  arguments.option(
      "--delimiter", "WHAT", &delimiter_,
      "Character between the fields of a text, tab, or blank (found in the first lines)");
  arguments
      .option("--decimal", "MARK", &decimal_, "Mark before the fraction of a number in a text (.)")
      .one_of({".", ","});
  arguments
      .option("--header", "WHAT", &header_,
              "First line of a text: yes for names of columns, no for a row (found out: names, "
              "unless all are numbers)")
      .one_of({"yes", "no"});
  arguments.option("--drop-columns", "LIST", &drop_columns_,
                   "Columns to leave out, by name or place, such as a,3");
  arguments
      .option("--bad-values", "WHAT", &bad_values_,
              "Treatment of a value that is no number: error, zero (leaves out a row without "
              "target), or skip its row (error)")
      .one_of({"error", "zero", "skip"});
}

void TableOptions::declare_workers(Arguments& arguments) {
  arguments.option("--threads", "N", &threads_, "Number of threads; 0: torch's setting (0)")
      .range(0, 4096);
  arguments.option(
      "--executors", "LIST", &executors_,
      "Executors that share the rows by their measured speeds, such as cpu:2,cpu:1,cuda:0. Each is "
      "a number of threads on cores of its own, or a GPU (none: --threads share the rows equally)");
  arguments
      .option("--share", "HOW", &share_,
              "Shares of executors: stealing (by speed, and idle ones help), affine (by speed), or "
              "static (by threads) (stealing)")
      .one_of({"stealing", "affine", "static"});
  arguments
      .option("--verify", "N", &verify_,
              "Compute one of every N pieces of work on two executors and compare; 0: none (0)")
      .range(0, 1e9);
  arguments
      .option("--trace", "FILE", &trace_,
              "Write a Chrome trace: what each thread computed and when. Node N of several appends "
              ".nodeN to the name, except node 0")
      .completes(Completion::kFile);
  arguments
      .option("--timeout", "SECONDS", &timeout_s_,
              "Time after which a silent node counts as dead, with several nodes (dovetail launch) "
              "(300)")
      .range(0.1, 1e6);
  arguments.flag("--fresh", fresh_,
                 "Start over instead of continuing a stopped job with the same options");
}

void TableOptions::check() const {
  user_check(columns_.empty() || drop_columns_.empty(),
             "--columns and --drop-columns both say which columns to read; give one of them");
  user_check(
      delimiter_.size() <= 1 || delimiter_ == "tab" || delimiter_ == "blank" || delimiter_ == "\\t",
      "--delimiter: \"{}\" is not one character, tab or blank", printable(delimiter_));
  user_check(delimiter_ != decimal_, "--delimiter and --decimal are both \"{}\"; they must differ",
             decimal_);
  if (executors_.empty()) {
    user_check(share_.empty() && verify_ == 0,
               "--share and --verify are about --executors, but there are none");
    return;
  }
  jobs::parse_executors(executors_);
  user_check(threads_ == 0,
             "--threads: executors have threads of their own; give only --executors {}",
             executors_);
}

std::shared_ptr<comm::Group> TableOptions::join() const {
  constexpr double kTimeout = 300;
  auto group = comm::world_from_environment({.timeout_s = timeout_s_ > 0 ? timeout_s_ : kTimeout});
  user_check(timeout_s_ <= 0 || group->size() > 1,
             "--timeout is about several nodes, but there is one; start more with `dovetail "
             "launch`, or leave it out");
  return group;
}

data::Matrix TableOptions::read(const comm::Group& group, data::MatrixOptions options) const {
  const int here = comm::neighbours_of(group).size;
  if (threads_ > 0) {
    at::set_num_threads(static_cast<int>(threads_));
  } else if (here > 1) {
    at::set_num_threads(std::max(1, machine().cores / here));
  }
  options.bad_values = kBadValues.at(bad_values_);
  if (!options.columns.empty()) {
    user_check(columns_.empty() && drop_columns_.empty(),
               "--columns and --drop-columns do nothing here: {} says which columns to read",
               options.columns_by);
  } else {
    options.drop_columns = parse_names("--drop-columns", drop_columns_);
    options.columns = parse_names("--columns", columns_);
  }
  options.delimiter = delimiter_ == "\\t" ? "tab" : delimiter_ == " " ? "blank" : delimiter_;
  options.decimal = decimal_[0];
  options.header = header_;
  data::Matrix matrix = data::read_matrix(data_, options);
  if (group.rank() == 0) {
    for (const std::string& note : matrix.notes) log_info("{}: {}", data_, note);
    for (const std::string& warning : matrix.warnings) log_warning("{}: {}", data_, warning);
  }
  if (matrix.num_bad > 0 && group.rank() == 0) {
    log_warning("{}: {} bad values, {}", data_, format_grouped(matrix.num_bad),
                bad_values_ == "zero" && matrix.left_out.empty()
                    ? std::string("0 in their place")
                    : fmt::format("{}{} rows {}left out",
                                  bad_values_ == "zero" ? "0 in place of features, " : "",
                                  format_grouped(std::ssize(matrix.left_out)),
                                  bad_values_ == "zero" ? "without target " : ""));
    for (const std::string& bad : matrix.first_bad) log_info("  {}", bad);
  }
  return matrix;
}

std::filesystem::path TableOptions::trace_file(jobs::Nodes* nodes) const {
  const int64_t node = nodes != nullptr ? nodes->group().rank() : 0;
  return node == 0 ? trace_ : fmt::format("{}.node{}", trace_, node);
}

std::shared_ptr<jobs::Workers> TableOptions::make_workers(
    const std::shared_ptr<comm::Group>& group) const {
  if (!trace_.empty()) start_trace(/*aten=*/false);
  std::shared_ptr<jobs::Runtime> executors;
  if (!executors_.empty()) {
    jobs::SchedulerOptions scheduling{.verify_every = verify_};
    if (!share_.empty()) scheduling.policy = jobs::parse_share_policy(share_);
    const std::vector<jobs::ExecutorSpec> list = jobs::parse_executors(executors_);
    int64_t threads = 0;
    for (const jobs::ExecutorSpec& executor : list) {
      threads += executor.threads;
      if (executor.device.is_cuda() && comm::neighbours_of(*group).size > 1)
        throw UserError(fmt::format("executors: all processes of this machine would share {}",
                                    executor.device.str()),
                        "start one process for each machine and list its GPUs");
    }
    executors = std::make_shared<jobs::Runtime>(
        list, jobs::RuntimeOptions{.scheduling = scheduling,
                                   .first_processor = comm::neighbours_of(*group).rank * threads,
                                   .speeds = cache_folder("speeds")});
  }
  if (group->size() == 1) return executors;
  return std::make_shared<jobs::Nodes>(group, executors);
}

jobs::Runtime* TableOptions::executors_of(jobs::Workers* workers) {
  auto* nodes = dynamic_cast<jobs::Nodes*>(workers);
  return nodes != nullptr ? nodes->executors() : dynamic_cast<jobs::Runtime*>(workers);
}

void TableOptions::finish(jobs::Workers* workers, nlohmann::ordered_json& result) const {
  auto* nodes = dynamic_cast<jobs::Nodes*>(workers);
  auto* runtime = executors_of(workers);
  if (!trace_.empty()) stop_trace(trace_file(nodes));
  const auto executors = runtime != nullptr ? executors_json(*runtime) : nlohmann::ordered_json();
  if (nodes != nullptr) {
    auto& list = result["nodes"] = nlohmann::ordered_json::array();
    const auto all = comm::all_gather_bytes(nodes->group(), executors.dump());
    for (size_t r = 0; r < all.size(); ++r) {
      const jobs::Nodes::Report& report = nodes->report()[r];
      list.push_back(
          {{"rows", report.rows}, {"seconds", report.seconds}, {"rows_moved", report.moved}});
      if (runtime != nullptr) list.back()["executors"] = nlohmann::ordered_json::parse(all[r]);
    }
  } else if (runtime != nullptr) {
    result["executors"] = executors;
  }
  const bool first_here = nodes == nullptr || comm::neighbours_of(nodes->group()).rank == 0;
  if (runtime != nullptr && first_here) runtime->save_speeds();
}

std::vector<std::pair<std::string, std::string>> TableOptions::worker_figures(
    const nlohmann::ordered_json& result) {
  std::vector<std::pair<std::string, std::string>> list;
  const auto add = [&](const nlohmann::ordered_json& of, const std::string& where) {
    for (const auto& executor : of.value("executors", nlohmann::ordered_json::array())) {
      const auto number = [&](const char* key) { return executor.at(key).get<double>(); };
      std::string text =
          fmt::format("{} ({:.1f} %), busy {:.3g} s (copies {:.3g} s), idle {:.3g} s",
                      format_grouped(executor.at("rows")), 100 * number("share"), number("busy_s"),
                      number("copy_s"), number("idle_s"));
      if (executor.contains("alpha")) text += fmt::format(", alpha {:.3g}", number("alpha"));
      if (executor.contains("left_out"))
        text += ", left out: " + executor.at("left_out").get<std::string>();
      list.emplace_back("rows of " + executor.at("name").get<std::string>() + where, text);
    }
  };
  add(result, "");
  int64_t number = 0;
  for (const auto& node : result.value("nodes", nlohmann::ordered_json::array())) {
    const std::string name = fmt::format("node {}", number++);
    list.emplace_back("rows of " + name,
                      fmt::format("{} in {:.3g} s", format_grouped(node.at("rows")),
                                  node.at("seconds").get<double>()));
    add(node, " on " + name);
  }
  return list;
}

std::string TableOptions::data_words() const {
  std::string words = fmt::format("--data {} --bad-values {}", data_, bad_values_);
  if (!columns_.empty()) words += " --columns " + columns_;
  if (!delimiter_.empty()) words += " --delimiter " + delimiter_;
  if (decimal_ != ".") words += " --decimal " + decimal_;
  if (!header_.empty()) words += " --header " + header_;
  if (!drop_columns_.empty()) words += " --drop-columns " + drop_columns_;
  return words;
}

std::string TableOptions::table_words() const {
  return data_words() + file_words(data::matrix_file(data_).string());
}

std::string TableOptions::worker_words() const {
  std::string words;
  if (!executors_.empty()) words += " --executors " + executors_;
  if (!share_.empty()) words += " --share " + share_;
  if (verify_ > 0) words += fmt::format(" --verify {}", verify_);
  return words;
}

std::string file_words(const std::string& name) {
  if (!std::filesystem::is_regular_file(name)) return "";
  return fmt::format(" ({} bytes of {})", std::filesystem::file_size(name),
                     std::filesystem::last_write_time(name).time_since_epoch().count());
}

void write_table(const std::filesystem::path& path, const std::vector<std::string>& columns,
                 const at::Tensor& rows, const std::vector<std::string>& names) {
  std::string text;
  // A single column without a name would give an empty header line, which readers skip.
  const auto name_of = [](const std::string& column) {
    return column.empty() ? "\"\"" : csv_field(column);
  };
  for (size_t i = 0; i < columns.size(); ++i) text += (i > 0 ? "," : "") + name_of(columns[i]);
  text += "\n";
  const auto* value = rows.const_data_ptr<double>();
  for (int64_t c = 0; c < rows.size(0); ++c) {
    if (!names.empty()) text += csv_field(names[static_cast<size_t>(c)]);
    for (int64_t p = 0; p < rows.size(1); ++p)
      fmt::format_to(std::back_inserter(text), "{}{}", p > 0 || !names.empty() ? "," : "",
                     *value++);
    text += "\n";
  }
  write_file_atomically(path, text);
}

void write_labels(const std::filesystem::path& path, const at::Tensor& labels,
                  const std::vector<int64_t>& left_out, const at::Tensor& distances) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  AtomicFile file(path);
  std::string text = distances.defined() ? "row,label,distance\n" : "row,label\n";
  auto skip = left_out.begin();
  const auto* label = labels.const_data_ptr<int32_t>();
  for (int64_t i = 0, row = 0; i < labels.numel(); ++i, ++row) {
    for (; skip != left_out.end() && *skip == row; ++skip) ++row;
    fmt::format_to(std::back_inserter(text), "{},{}", row, label[i]);
    if (distances.defined())
      fmt::format_to(std::back_inserter(text), ",{}", distances.const_data_ptr<double>()[i]);
    text += '\n';
    if (text.size() < kPieceBytes) continue;
    file.write(text);
    text.clear();
  }
  file.write(text);
  file.commit();
}

}  // namespace dovetail::cli
