#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/comm/rank_board.h"

namespace dovetail::comm {

class GlooConnections;

/// State of this rank that all groups of a family share. A family is a world and all groups split
/// from it. A failure in one group ends all groups of the family.
struct GlooFamily {
  c10::intrusive_ptr<c10d::Store> store;  ///< key-value store that all ranks of the job share
  std::string interface;                  ///< network interface, as in make_gloo_group
  GroupOptions options;
  int rank = 0, size = 1;  ///< rank and size in the world
  /// This rank's connections in each group.
  std::vector<std::weak_ptr<GlooConnections>> groups = {};

  /// Calls GlooConnections::abort of each group.
  void abort() noexcept;
  /// Calls GlooConnections::keep_failure of each group.
  void keep_failure(const std::string& failure);
};

/// Identity of one call of a collective, for error messages.
struct GlooCall {
  const char* name;          ///< name of the collective, for example "all_reduce"
  int64_t number;            ///< number of the call in its group from 1, the same on every rank
  std::string among;         ///< members of the group: " among ranks 0, 2"; empty for the world
  std::string text() const;  ///< example: "all_reduce (call 7) among ranks 0, 2"
};

/// Gloo's connections from this rank to the other members of one group. The Group and its running
/// collectives share them.
class GlooConnections {
 public:
  /// Connects to the other members. `name` identifies the group in its family. `ranks` are the
  /// members, numbered as in the world.
  GlooConnections(std::shared_ptr<GlooFamily> family, std::string name, std::vector<int> ranks);

  int rank() const;  ///< this rank's index in the group
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<GlooFamily>& family() const { return family_; }

  /// Counts a call of collective `name` and returns its identity.
  GlooCall next_call(const char* name) { return {name, ++calls_, among_}; }

  /// Starts a call: passes c10d's process group to `start`, which returns the running work. An
  /// error in `start` ends all groups of the family and is thrown as CommError.
  template <class Start>
  c10::intrusive_ptr<c10d::Work> start(const GlooCall& call, Start&& start) {
    check_usable(call);
    try {
      auto work = start(*gloo_);
      ++running_;
      return work;
    } catch (const std::exception& error) {
      fail(call, error);
    }
  }

  /// Waits until `work` of `call` is done. Throws CommError if it fails or cannot succeed.
  ///
  /// Meanwhile polls for closed connections and for failures that other ranks report (RankBoard).
  /// Gloo alone is not enough: it does not always end a call whose connection closes in the middle
  /// of a transfer. After about one death of a rank in a hundred, a call waited until its timeout.
  /// Gloo also notices nothing while a rank that left the group keeps its connections open (see
  /// `close`). Every rank has a connection to every other rank of its group.
  void wait(const GlooCall& call, c10d::Work& work);
  /// Counts a started call as finished.
  void finished() { --running_; }

  /// Ends this rank's part in the group. If calls of this rank are unfinished, its connections
  /// close at once. Otherwise they stay open until the other ranks have left too, for 1 s at most.
  /// The reason: a call that is over on this rank may still run on other ranks and need the
  /// connections.
  void close() noexcept;

  /// Closes every connection at once. This ends the running calls on all ranks of the group.
  void abort() noexcept;
  /// Stores the reason that the errors of later calls give.
  void keep_failure(const std::string& failure) { failure_ = failure; }

 private:
  void check_usable(const GlooCall& call) const;
  bool finished_within(const GlooCall& call, c10d::Work& work, std::chrono::milliseconds slice);
  [[noreturn]] void fail(const GlooCall& call, const std::exception& error);
  std::set<int> closed_peers();  // numbered as in the world
  c10::intrusive_ptr<c10d::Work> receive(int peer);

  std::shared_ptr<GlooFamily> family_;
  std::string name_;
  std::vector<int> ranks_;
  std::string among_;
  RankBoard board_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;  // null after the group failed or was closed
  std::string failure_ = "it is closed";
  int64_t calls_ = 0;
  int running_ = 0;
};

/// Returns the first line of Gloo's error text, without source position and advice.
std::string gloo_reason(const std::exception& error);

}  // namespace dovetail::comm
