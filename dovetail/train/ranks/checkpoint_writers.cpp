#include "dovetail/train/ranks/checkpoint_writers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/comm/collective.h"

namespace dovetail::train {
namespace {

namespace fs = std::filesystem;

/// Returns a name of rank 0 that no earlier call returned, on every rank.
std::string new_name(comm::Group& world) {
  std::string name;
  if (world.rank() == 0) {
    std::random_device random;
    name = fmt::format("{:08x}{:08x}", random(), random());
  }
  return comm::broadcast_json(world, name).get<std::string>();
}

class RankWriters final : public io::CheckpointWriters {
 public:
  explicit RankWriters(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }

  std::vector<std::string> together(const std::function<std::string()>& work) override {
    nlohmann::ordered_json mine = {{"result", ""}, {"error", ""}, {"help", ""}};
    const auto refuse = [&](const char* message, const std::string& help) {
      mine["error"] = *message == '\0' ? "failed" : message;
      mine["help"] = help;
    };
    comm::on_all_ranks(*group_, "writing a checkpoint", [&] {
      try {
        mine["result"] = work();
      } catch (const UserError& error) {
        refuse(error.what(), error.help());
      } catch (const std::exception& error) {
        refuse(error.what(), "");
      }
    });
    std::vector<std::string> results, errors;
    std::string help;
    for (const auto& of_rank : comm::gather_json(*group_, mine)) {
      if (const std::string error = of_rank["error"]; !error.empty()) {
        if (errors.empty()) help = of_rank["help"];
        errors.push_back(fmt::format("rank {}: {}", results.size(), error));
      }
      results.push_back(of_rank["result"]);
    }
    if (!errors.empty()) throw UserError(fmt::format("{}", fmt::join(errors, "; ")), help);
    return results;
  }

 private:
  std::shared_ptr<comm::Group> group_;
};

}  // namespace

std::shared_ptr<io::CheckpointWriters> checkpoint_writers(comm::Group& world) {
  if (world.size() == 1) return nullptr;
  // A group split from `world` would not do: a failure in one ends both, and one thread uses both.
  const comm::Group::Connections of_world = world.connections();
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>("checkpoints/" + new_name(world), of_world.store);
  return std::make_shared<RankWriters>(
      comm::group_over_store(store, world.rank(), world.size(), {.timeout_s = of_world.timeout_s}));
}

void check_shared_folder(const fs::path& folder, comm::Group& world) {
  if (world.size() == 1) return;
  // The name is new, so no rank has an old answer of a network file system about it.
  const fs::path token = folder / fmt::format(".shared-{}.partial", new_name(world));
  comm::on_rank_zero(world, "writing to the run's folder",
                     [&] { write_file_atomically(token, ""); });
  std::error_code unseen;
  const bool sees = fs::exists(token, unseen);
  std::vector<size_t> blind;
  const auto answers = comm::gather_json(world, sees);
  for (size_t rank = 0; rank < answers.size(); ++rank)
    if (!answers[rank].get<bool>()) blind.push_back(rank);
  if (world.rank() == 0) fs::remove(token, unseen);
  if (blind.empty()) return;
  throw UserError(
      fmt::format("rank{} {} {} not see the folder {} of rank 0, into which each rank writes its "
                  "part of a checkpoint",
                  blind.size() == 1 ? "" : "s", fmt::join(blind, ", "),
                  blind.size() == 1 ? "does" : "do", folder.string()),
      "set run.folder to a folder that all ranks share. With checkpoint.writers = \"first\", "
      "rank 0 gathers the tensors and writes them");
}

}  // namespace dovetail::train
