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

/// State of this rank that a world and all groups split from it share. A failure in one group ends
/// all of them.
struct GlooFamily {
  c10::intrusive_ptr<c10d::Store> store;
  std::string interface;
  GroupOptions options;
  int rank = 0, size = 1;  ///< rank and size in the world
  std::vector<std::weak_ptr<GlooConnections>> groups = {};

  void abort() noexcept;
  void keep_failure(const std::string& failure);
};

/// Identity of one call of a group, for error texts.
struct GlooCall {
  const char* name;
  int64_t number;     ///< counted from 1, the same on every rank
  std::string among;  ///< " among ranks 0, 2"; empty for the world
  std::string text() const;
};

/// Connections of one rank in one group. The group and the work that it started share them.
class GlooConnections {
 public:
  /// Connects to the other members. `name` is unique in the family. `ranks` are the members,
  /// numbered as in the world.
  GlooConnections(std::shared_ptr<GlooFamily> family, std::string name, std::vector<int> ranks);

  int rank() const;
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<GlooFamily>& family() const { return family_; }

  GlooCall next_call(const char* name) { return {name, ++calls_, among_}; }

  /// Starts a call. An error in it ends the whole family.
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

  /// Waits until `work` is done. Polls the connections and the board meanwhile. Gloo does not
  /// always wake a call whose connection closes in the middle of a transfer. About one death in a
  /// hundred left a call asleep until the timeout. Gloo never wakes it while the rank that left
  /// still lingers. Every rank has a connection to every other rank of its group.
  void wait(const GlooCall& call, c10d::Work& work);
  void finished() { --running_; }

  /// Ends this rank's part in the group. Its connections stay open for a short time, until the
  /// others are done as well. A call that is over here may still run between them. The connections
  /// close at once if calls of this rank are unfinished.
  void close() noexcept;

  /// Closes every connection. This ends the calls of all ranks.
  void abort() noexcept;
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

/// Returns Gloo's error text without its source position and its advice.
std::string gloo_reason(const std::exception& error);

}  // namespace dovetail::comm
