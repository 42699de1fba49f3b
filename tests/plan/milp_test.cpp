#include "dovetail/plan/solve/milp.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "dovetail/base/error.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::plan::milp_test {
namespace {

using test::TemporaryFolder;

constexpr double kInfinity = LinearProgram::kInfinity;
const MilpOptions kExact = {.relative_gap = 0};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Knapsack problem with `items` of random value and `knapsacks` dimensions. The limit of each
/// dimension is half of the items' total weight. The objective to minimise is minus the value.
LinearProgram knapsack(int items, int knapsacks, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> draw(5, 60);
  LinearProgram program;
  program.offset = 7;
  for (int i = 0; i < items; ++i) program.add_column(-draw(random), 0, 1, true);
  for (int k = 0; k < knapsacks; ++k) {
    std::vector<std::pair<int, double>> entries;
    double all = 0;
    for (int i = 0; i < items; ++i) {
      entries.emplace_back(i, draw(random));
      all += entries.back().second;
    }
    program.add_row(-kInfinity, std::floor(all / 2), entries);
  }
  return program;
}

/// Market split (Cornuejols and Dawande, 1999), too hard for branch and bound. It chooses columns
/// so that each row's sum is half of the sum over all columns. Here a deviation has a cost, so that
/// every choice is a solution.
LinearProgram hard_program(int columns, int rows, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> draw(0, 99);
  LinearProgram program;
  for (int c = 0; c < columns; ++c) program.add_column(0, 0, 1, true);
  for (int r = 0; r < rows; ++r) {
    std::vector<std::pair<int, double>> entries;
    double all = 0;
    for (int c = 0; c < columns; ++c) {
      entries.emplace_back(c, draw(random));
      all += entries.back().second;
    }
    entries.emplace_back(program.add_column(1, 0, kInfinity, false), 1);
    entries.emplace_back(program.add_column(1, 0, kInfinity, false), -1);
    program.add_row(std::floor(all / 2), std::floor(all / 2), entries);
  }
  return program;
}

/// The solution that chooses no column.
std::vector<double> nothing_chosen(const LinearProgram& program) {
  std::vector<double> values(program.cost.size(), 0);
  for (size_t r = 0; r < program.row_lower.size(); ++r)
    values[static_cast<size_t>(program.index[static_cast<size_t>(program.row_start[r + 1]) - 2])] =
        program.row_lower[r];
  return values;
}

/// Returns the minimum over all points of columns in {0, 1}.
double least_by_enumeration(const LinearProgram& program) {
  double least = kInfinity;
  std::vector<double> values(program.cost.size());
  for (uint64_t point = 0; point < uint64_t{1} << values.size(); ++point) {
    for (size_t c = 0; c < values.size(); ++c) values[c] = static_cast<double>(point >> c & 1);
    if (program.violation(values) == 0) least = std::min(least, program.objective(values));
  }
  return least;
}

void expect_solution(const LinearProgram& program, const MilpResult& result) {
  ASSERT_EQ(result.values.size(), program.cost.size());
  EXPECT_LE(program.violation(result.values), kMilpTolerance);
  EXPECT_EQ(program.objective(result.values), result.objective);
  EXPECT_LE(result.bound, result.objective);
}

/// Processes named dovetail-milp whose parent is `parent`.
std::vector<pid_t> solvers_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string number, name, state;
    pid_t of = 0;
    if (file >> number >> name >> state >> of && name == "(dovetail-milp)" && of == parent &&
        state != "Z")
      found.push_back(std::stoi(number));
  }
  return found;
}

pid_t wait_for_solver(pid_t parent) {
  for (int tries = 0; tries < 2000; ++tries) {
    if (const std::vector<pid_t> found = solvers_of(parent); !found.empty()) return found.front();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

std::filesystem::path script(const TemporaryFolder& folder, const std::string& body) {
  std::filesystem::path path = folder / "solver";
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

class Knapsack : public ::testing::TestWithParam<unsigned> {};

TEST_P(Knapsack, IsTheLeastOfAllPointsAndNotBelowItsRelaxation) {
  const LinearProgram program = knapsack(14, 1 + static_cast<int>(GetParam() % 3), GetParam());
  const double least = least_by_enumeration(program);
  const MilpResult result = solve_milp(program, kExact);
  expect_solution(program, result);
  EXPECT_EQ(result.status, MilpResult::kOptimal);
  EXPECT_NEAR(result.objective, least, kMilpTolerance);
  EXPECT_NEAR(result.bound, least, kMilpTolerance);
  EXPECT_LE(result.gap, kMilpTolerance);

  const MilpResult relaxed = solve_milp(program, {.relax = true});
  EXPECT_EQ(relaxed.status, MilpResult::kOptimal);
  EXPECT_LE(relaxed.objective, least + kMilpTolerance);
  EXPECT_EQ(relaxed.bound, relaxed.objective);
  LinearProgram fractional = program;
  fractional.integer.assign(fractional.integer.size(), 0);
  expect_solution(fractional, relaxed);
  EXPECT_GT(program.violation(relaxed.values), 1e-3)
      << "these knapsacks' relaxations are fractional";
}

TEST_P(Knapsack, CutoffDividesWhatIsFoundFromWhatIsNot) {
  LinearProgram program = knapsack(14, 2, GetParam());
  const double least = least_by_enumeration(program);
  program.start = std::vector<double>(program.cost.size(), 0);  // objective 7 is above the cutoff
  MilpOptions options = kExact;
  options.cutoff = least;
  const MilpResult found = solve_milp(program, options);
  EXPECT_EQ(found.status, MilpResult::kOptimal);
  EXPECT_NEAR(found.objective, least, kMilpTolerance);
  options.cutoff = least - 0.5;
  const MilpResult none = solve_milp(program, options);
  EXPECT_EQ(none.status, MilpResult::kInfeasible);
  EXPECT_TRUE(none.values.empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, Knapsack, ::testing::Range(0U, 6U));

TEST(Milp, MixedColumnsAgainstEnumeration) {
  constexpr int kColumns = 14;
  const LinearProgram program = hard_program(kColumns, 3, 5);
  double least = kInfinity;
  for (uint64_t point = 0; point < uint64_t{1} << kColumns; ++point) {
    double amiss = 0;
    for (size_t r = 0; r < program.row_lower.size(); ++r) {
      double sum = -program.row_lower[r];
      for (size_t c = 0; c < kColumns; ++c)
        if ((point >> c & 1) != 0)
          sum += program.value[static_cast<size_t>(program.row_start[r]) + c];
      amiss += std::abs(sum);
    }
    least = std::min(least, amiss);
  }
  ASSERT_GT(least, 0);
  const MilpResult result = solve_milp(program, kExact);
  expect_solution(program, result);
  EXPECT_EQ(result.status, MilpResult::kOptimal);
  EXPECT_NEAR(result.objective, least, kMilpTolerance);
  EXPECT_GT(result.nodes, 1) << "the relaxation has nothing amiss";
}

TEST(Milp, BoundsEqualitiesAndRepeatedEntries) {
  // Minimum of x + y + z with x + 2 y = 5 (x named twice), y - z <= -0.5, x >= 2. All are integers
  // except z.
  LinearProgram program;
  const int x = program.add_column(1, 2, kInfinity, true),
            y = program.add_column(1, -kInfinity, 10, true);
  const int z = program.add_column(1, -1, 1, false);
  EXPECT_EQ(program.add_row(5, 5, {{x, 0.5}, {y, 2}, {x, 0.5}}), 0);
  EXPECT_EQ(program.add_row(-kInfinity, -0.5, {{z, -1}, {y, 1}}), 1);
  const MilpResult result = solve_milp(program, kExact);
  expect_solution(program, result);
  // x = 5 - 2 y: the sum is 5 - y + z with z >= y + 0.5 and y <= 0.5, which is 5 - 0 + 0.5; y = -1
  // has z = -0.5.
  EXPECT_NEAR(result.objective, 5.5, kMilpTolerance);
}

TEST(Milp, ProgramsWithoutAnything) {
  LinearProgram program;
  program.offset = 3;
  const MilpResult empty = solve_milp(program);
  EXPECT_EQ(empty.status, MilpResult::kOptimal);
  EXPECT_EQ(empty.objective, 3);
  EXPECT_EQ(empty.gap, 0);
  program.add_column(2, 1.5, 9, true);
  EXPECT_NEAR(solve_milp(program).objective, 7, kMilpTolerance);
  program.add_row(0, 1, {});
  EXPECT_NEAR(solve_milp(program).objective, 7, kMilpTolerance);
  program.add_row(1, 2, {});
  EXPECT_EQ(solve_milp(program).status, MilpResult::kInfeasible);
}

TEST(Milp, InfeasibleInIntegersOnly) {
  LinearProgram program;
  const int x = program.add_column(1, 0, 10, true), y = program.add_column(1, 0, 10, true);
  program.add_row(3, 3, {{x, 2}, {y, 2}});
  const MilpResult result = solve_milp(program);
  EXPECT_EQ(result.status, MilpResult::kInfeasible);
  EXPECT_EQ(result.bound, kInfinity);
  EXPECT_NEAR(solve_milp(program, {.relax = true}).objective, 1.5, kMilpTolerance);
}

TEST(Milp, UnboundedIsAnErrorUnlessNothingIsFeasible) {
  LinearProgram program;
  const int x = program.add_column(-1, 0, kInfinity, true),
            y = program.add_column(-1, 0, kInfinity, true);
  program.add_row(-kInfinity, 1, {{x, 1}, {y, -1}});
  EXPECT_THROW(solve_milp(program), InternalError);
  EXPECT_THROW(solve_milp(program, {.relax = true}), InternalError);
  const int z = program.add_column(0, 0, 1, true);
  program.add_row(3, 4, {{z, 2}});
  EXPECT_EQ(solve_milp(program).status, MilpResult::kInfeasible);
}

TEST(Milp, AStartIsTheLeastOfAResult) {
  LinearProgram program = hard_program(50, 6, 1);
  program.start = nothing_chosen(program);
  const MilpResult at_once = solve_milp(program, {.time_limit_s = 0});
  expect_solution(program, at_once);
  EXPECT_EQ(at_once.status, MilpResult::kFeasible);
  EXPECT_EQ(at_once.values, program.start);
  // The solver prints nothing.
  const TemporaryFolder folder;
  const MilpResult silent =
      solve_milp(program, {.time_limit_s = 0.1, .program = script(folder, "exec sleep 100")});
  EXPECT_EQ(silent.status, MilpResult::kFeasible);
  EXPECT_EQ(silent.values, program.start);

  LinearProgram small = knapsack(14, 2, 3);
  const MilpResult cold = solve_milp(small, kExact);
  small.start = cold.values;
  EXPECT_NEAR(solve_milp(small, kExact).objective, cold.objective, kMilpTolerance);
}

TEST(Milp, AStartThatIsNoSolutionIsRefused) {
  LinearProgram program = knapsack(5, 1, 1);
  program.start = std::vector<double>(5, 1);
  EXPECT_THROW(solve_milp(program), InternalError);
  program.start = std::vector<double>(4, 0);
  EXPECT_THROW(solve_milp(program), InternalError);
  program.start = std::vector<double>{0, 0, 0, 0, NAN};
  EXPECT_THROW(solve_milp(program), InternalError);
}

TEST(Milp, TheTimeLimitIsHardAndTheBestSoFarIsTheResult) {
  LinearProgram large = hard_program(2000, 400, 2);  // presolve alone takes longer than the limit
  large.start = nothing_chosen(large);
  for (const LinearProgram& program : {hard_program(50, 6, 2), large}) {
    const auto begin = std::chrono::steady_clock::now();
    const MilpResult result = solve_milp(program, {.time_limit_s = 3, .relative_gap = 0});
    EXPECT_LT(seconds_since(begin), 1.1 * 3 + 2 + 0.5);
    EXPECT_GT(result.seconds, 2.9);
    EXPECT_LE(result.seconds, seconds_since(begin));
    EXPECT_EQ(result.status, MilpResult::kFeasible);
    expect_solution(program, result);
    EXPECT_GE(result.bound, program.start ? -kInfinity : 0);
    EXPECT_GT(result.gap, 0);
    if (!program.start) {
      EXPECT_LT(result.seconds, 5) << "the solver keeps its own limit here";
    }
  }
}

/// Solves with a solver that is stopped after 2 of 3 seconds, so that it cannot keep its own time
/// limit.
MilpResult solve_and_stop(const LinearProgram& program) {
  std::future<MilpResult> result = std::async(std::launch::async, [&] {
    return solve_milp(program, {.time_limit_s = 3, .relative_gap = 0});
  });
  const pid_t solver = wait_for_solver(getpid());
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_GT(solver, 0);
  if (solver > 0) kill(solver, SIGSTOP);
  MilpResult found = result.get();
  EXPECT_GT(found.seconds, 5);
  EXPECT_LT(found.seconds, 1.1 * 3 + 2 + 0.5);
  EXPECT_TRUE(solvers_of(getpid()).empty());
  return found;
}

TEST(Milp, WhatWasSentBeforeASolverStopsIsTheResult) {
  const LinearProgram program = hard_program(50, 6, 2);
  const MilpResult found = solve_and_stop(program);
  EXPECT_EQ(found.status, MilpResult::kFeasible);
  expect_solution(program, found);
  EXPECT_GE(found.bound, 0);

  LinearProgram exact =
      program;  // no solution is known, but a bound: of what half the columns cost
  for (size_t c = 0; c < exact.cost.size(); ++c) {
    exact.cost[c] = exact.integer[c];
    if (exact.integer[c] == 0) exact.upper[c] = 0;
  }
  const MilpResult none = solve_and_stop(exact);
  EXPECT_EQ(none.status, MilpResult::kNoSolution);
  EXPECT_TRUE(none.values.empty());
  EXPECT_GT(none.bound, 0);
}

TEST(Milp, ASolverThatNeitherReadsNorSpeaksIsEnded) {
  const TemporaryFolder folder;
  const LinearProgram large = knapsack(100000, 5, 1);  // more than a socket holds
  const auto begin = std::chrono::steady_clock::now();
  const MilpResult result =
      solve_milp(large, {.time_limit_s = 0.1, .program = script(folder, "exec sleep 100")});
  EXPECT_EQ(result.status, MilpResult::kNoSolution);
  EXPECT_LT(seconds_since(begin), 1.1 * 0.1 + 2 + 0.5);
  EXPECT_GT(seconds_since(begin), 2);
}

TEST(Milp, SeveralAtOnce) {
  std::vector<std::future<MilpResult>> results;
  for (unsigned seed = 0; seed < 4; ++seed)
    results.push_back(std::async(std::launch::async,
                                 [seed] { return solve_milp(knapsack(14, 2, seed), kExact); }));
  for (unsigned seed = 0; seed < 4; ++seed)
    EXPECT_NEAR(results[seed].get().objective, least_by_enumeration(knapsack(14, 2, seed)),
                kMilpTolerance);
  EXPECT_TRUE(solvers_of(getpid()).empty());
}

TEST(Milp, AMissingSolverIsNamed) {
  try {
    solve_milp(knapsack(5, 1, 1), {.program = "/nowhere/dovetail-milp"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/dovetail-milp"), std::string::npos)
        << error.what();
    EXPECT_NE(error.help().find("./dev build dovetail-milp"), std::string::npos) << error.help();
  }
  const TemporaryFolder folder;
  try {
    solve_milp(knapsack(5, 1, 1), {.program = script(folder, "exit 127")});  // the loader's
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(error.help().find("highsbox"), std::string::npos) << error.help();
  }
}

std::string internal_error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Milp, ASolverThatDiesIsAnErrorAtOnce) {
  const TemporaryFolder folder;
  const LinearProgram large = knapsack(100000, 5, 1);
  const auto solve = [&](const std::string& body) {
    return internal_error_of([&] { solve_milp(large, {.program = script(folder, body)}); });
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(solve("exit 7").find("exit status 7"), std::string::npos) << solve("exit 7");
  EXPECT_NE(solve("kill -9 $$").find("signal 9"), std::string::npos) << solve("kill -9 $$");
  EXPECT_NE(solve("exit 0").find("exit status 0"), std::string::npos) << solve("exit 0");
  EXPECT_LT(seconds_since(begin), 20);

  std::future<std::string> error = std::async(std::launch::async, [] {
    return internal_error_of([] { solve_milp(hard_program(50, 6, 2), {.relative_gap = 0}); });
  });
  const pid_t solver = wait_for_solver(getpid());
  ASSERT_GT(solver, 0);
  kill(solver, SIGKILL);
  EXPECT_NE(error.get().find("signal 9"), std::string::npos);
}

TEST(Milp, TheSolverDiesWithItsParent) {
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    solve_milp(hard_program(50, 6, 2), {.relative_gap = 0});
    _exit(0);
  }
  const pid_t solver = wait_for_solver(parent);
  EXPECT_GT(solver, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it has begun
  if (solver > 0) kill(solver, SIGSTOP);  // it cannot notice that its parent has gone
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  for (int tries = 0; tries < 400 && solver > 0; ++tries) {
    std::ifstream file("/proc/" + std::to_string(solver) + "/stat");
    std::string number, name, state;
    if (!(file >> number >> name >> state) || state == "Z") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL() << "it runs on";
}

}  // namespace
}  // namespace dovetail::plan::milp_test
