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

namespace dovetail {

class GlooConnections;

/// What a world and the groups split from it share on this rank. A failure in one ends them all.
struct GlooFamily {
  c10::intrusive_ptr<c10d::Store> store;
  std::string interface;
  GroupOptions options;
  int rank = 0, size = 1;  ///< of the world
  std::vector<std::weak_ptr<GlooConnections>> groups = {};

  void abort() noexcept;
  void keep_failure(const std::string& failure);
};

/// A call of a group, for errors.
struct GlooCall {
  const char* name;
  int64_t number;     ///< counted from 1, alike on every rank
  std::string among;  ///< " among ranks 0, 2"; empty in the world
  std::string text() const;
};

/// The connections of one rank in one group, shared by the group and the work that it started.
class GlooConnections {
 public:
  /// `name` is the group's own in the family, `ranks` its members in the world's numbers.
  GlooConnections(std::shared_ptr<GlooFamily> family, std::string name, std::vector<int> ranks);

  int rank() const;
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<GlooFamily>& family() const { return family_; }

  GlooCall next_call(const char* name) { return {name, ++calls_, among_}; }

  /// Starts a call; any error of it ends the family.
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

  /// Gloo does not always wake a call that is in the middle of a transfer when its connection
  /// closes (about one death in a hundred left one asleep until the timeout), and not at all while
  /// the rank that left lingers. So connections and the board are looked at while waiting; every
  /// rank has a connection to every other of its group.
  void wait(const GlooCall& call, c10d::Work& work);
  void finished() { --running_; }

  /// The end of this rank's part in the group. Its connections stay until the others are done as
  /// well, since a call that is over here may still be under way between them; but not long, and
  /// not when calls of its own are left unfinished.
  void close() noexcept;

  /// Closes every connection, which ends the calls of all ranks.
  void abort() noexcept;
  void keep_failure(const std::string& failure) { failure_ = failure; }

 private:
  void check_usable(const GlooCall& call) const;
  bool finished_within(const GlooCall& call, c10d::Work& work, std::chrono::milliseconds slice);
  [[noreturn]] void fail(const GlooCall& call, const std::exception& error);
  std::set<int> closed_peers();  // in the world's numbers
  c10::intrusive_ptr<c10d::Work> receive(int peer);

  std::shared_ptr<GlooFamily> family_;
  std::string name_;
  std::vector<int> ranks_;
  std::string among_;
  RankBoard board_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;  // null once the group has failed or is closed
  std::string failure_ = "it is closed";
  int64_t calls_ = 0;
  int running_ = 0;
};

/// Gloo's text without its source position and its advice.
std::string gloo_reason(const std::exception& error);

}  // namespace dovetail
