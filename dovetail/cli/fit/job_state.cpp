#include "dovetail/cli/fit/job_state.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <map>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/io/safetensors.h"

namespace dovetail::cli {
namespace {

constexpr const char* kWords = "dovetail.words";
/// Version of the layout. A state with another layout cannot be resumed.
const std::string kLayout = "1: ";

/// Returns the bytes of the file if a job with these words left it; empty if there is none.
std::string left_by(const std::filesystem::path& path, const std::string& words, bool fresh) {
  if (fresh || !std::filesystem::exists(path)) return "";
  std::string bytes = read_file(path);
  const auto metadata = io::SafetensorsFile(bytes, path.string()).metadata();
  if (const auto found = metadata.find(kWords); found != metadata.end() && found->second == words)
    return bytes;
  throw UserError(fmt::format("{} holds a job that was stopped, of other options or another table",
                              path.parent_path().string()),
                  "give --fresh to start over, or another --out");
}

}  // namespace

JobState::JobState(comm::Group& group, const std::filesystem::path& folder,
                   const std::string& words, bool fresh)
    : path_(folder / "state.safetensors"), words_(kLayout + words), saves_(group.rank() == 0) {
  const bool starts_over = fresh && !comm::restarted_by_torchrun();
  const std::string bytes =
      comm::all_gather_bytes(group, saves_ ? left_by(path_, words_, starts_over) : std::string())
          .at(0);
  if (bytes.empty()) {
    done();
    return;
  }
  const io::SafetensorsFile file(bytes, path_.string());
  for (size_t i = 0; file.contains(fmt::format("state.{}", i)); ++i)
    stopped_.push_back(file.read(fmt::format("state.{}", i)));
  const at::Tensor lines = file.read("lines");
  for (int64_t i = 0; i < lines.size(0); ++i) {
    const auto* value = lines.const_data_ptr<double>() + i * lines.size(1);
    lines_.emplace_back(value, value + lines.size(1));
  }
  if (saves_)
    log_info("{}: going on after iteration {} of a job that was stopped",
             path_.parent_path().string(), lines_.size());
}

void JobState::add(std::vector<double> line, const std::vector<at::Tensor>& state) {
  lines_.push_back(std::move(line));
  if (!saves_ || state.empty() || now_seconds() < next_s_) return;
  constexpr double kMostPart = 0.05;
  const double start = now_seconds();
  std::map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < state.size(); ++i) tensors.emplace(fmt::format("state.{}", i), state[i]);
  std::vector<double> numbers;
  for (const std::vector<double>& one : lines_)
    numbers.insert(numbers.end(), one.begin(), one.end());
  tensors.emplace("lines", at::tensor(numbers, at::kDouble).view({std::ssize(lines_), -1}));
  try {
    io::write_safetensors(path_, tensors, {{kWords, words_}});
  } catch (const UserError& error) {
    log_warning("{}: where the job stands is not saved: {}", path_.string(), error.what());
  }
  const double end = now_seconds();
  next_s_ = end + (end - start) / kMostPart;
}

void JobState::done() {
  if (saves_) std::filesystem::remove(path_);
}

}  // namespace dovetail::cli
