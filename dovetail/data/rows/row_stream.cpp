#include "dovetail/data/rows/row_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/data/rows/block_pool.h"
#include "dovetail/data/rows/row_reader.h"
#include "dovetail/data/rows/row_statistics.h"

namespace dovetail::data {
namespace {

/// Returns the file row numbers of a block's kept rows.
std::vector<int64_t> numbers_of(const RowBlock& block, int64_t first_row) {
  std::vector<int64_t> numbers;
  auto left_out = block.left_out.begin();
  for (int64_t number = first_row + 1; std::ssize(numbers) < block.num_rows; ++number) {
    if (left_out != block.left_out.end() && *left_out == number)
      ++left_out;
    else
      numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

RowSplit parse_row_split(const std::string& name) {
  if (name == "train") return RowSplit::kTrain;
  if (name == "validation") return RowSplit::kValidation;
  user_check(name == "all", "the split \"{}\" is none of train, validation, all", printable(name));
  return RowSplit::kAll;
}

struct RowStream::State {
  RowsConfig config;
  RowReader reader;
  RowAssembler assembler;
  BlockPool pool;
  std::vector<std::filesystem::path> files;
  /// Current block, and one past the last block.
  int64_t block, end_block;
  std::shared_ptr<const RowBlock> rows;
  std::vector<int64_t> numbers;  ///< file row numbers of `rows`
  int64_t row = 0;               ///< index of the next row in `rows`
  int64_t num_bad = 0, num_unlabelled = 0;
  FloatIds float_ids;

  State(const RowsConfig& given, RowSplit split, const std::vector<DenseScale>& scales)
      : config(given),
        reader(config),
        assembler(config, reader.decoder(), scales),
        pool(reader, config.threads),
        block(split == RowSplit::kValidation ? reader.num_train_blocks() : 0),
        end_block(split == RowSplit::kTrain ? reader.num_train_blocks() : reader.num_blocks()) {
    if (block < end_block) open();
  }

  /// Waits for `block` and starts to read the blocks after it.
  void open() {
    std::vector<int64_t> wanted;
    for (int64_t b = block; b < std::min(block + 1 + config.threads, end_block); ++b)
      wanted.push_back(b);
    pool.want(wanted);
    rows = pool.get(block);
    numbers = numbers_of(*rows, reader.first_row(block));
    row = 0;
    float_ids.add(reader.file_of(block), rows->id_forms);
    num_bad += rows->num_bad;
    num_unlabelled += rows->num_unlabelled;
    if (files.empty() || files.back() != reader.file_of(block))
      files.push_back(reader.file_of(block));
    if (rows->num_bad > 0 && (config.bad_row == "error" || num_bad > config.max_bad_rows)) refuse();
  }

  [[noreturn]] void refuse() const {
    const BadRow& bad = rows->bad_rows.front();
    const std::string column = bad.column.empty() ? "" : fmt::format(", column `{}`", bad.column);
    const bool skips = config.bad_row == "skip";
    throw UserError(
        fmt::format("{}: {}row {}{}: {}", files.back().string(),
                    skips ? fmt::format("more than rows.max_bad_rows = {} bad rows, such as ",
                                        config.max_bad_rows)
                          : "",
                    bad.row, column, bad.reason),
        skips ? "mend the rows"
              : "mend it; a run with rows.bad_row = \"skip\" leaves such rows out");
  }

  /// Moves to the next row. Returns false at the end.
  bool advance() {
    while (block < end_block && row == rows->num_rows)
      if (++block < end_block) open();
    return block < end_block;
  }
};

RowStream::RowStream(const RowsConfig& config, RowSplit split,
                     const std::vector<DenseScale>& scales)
    : state_(std::make_unique<State>(config, split, scales)) {}

RowStream::~RowStream() = default;

StreamedRows RowStream::next(int64_t rows, RankPart part) {
  State& s = *state_;
  std::vector<RowRef> refs;
  std::vector<int64_t> files, numbers;
  while (std::ssize(refs) < rows && s.advance()) {
    files.push_back(std::ssize(s.files) - 1);
    numbers.push_back(s.numbers[static_cast<size_t>(s.row)]);
    refs.push_back({s.rows, s.row++});
  }
  const int64_t taken = std::ssize(refs), begin = taken * part.rank / part.world,
                end = taken * (part.rank + 1) / part.world;
  return {.taken = taken,
          .batch = s.assembler.batch(std::span(refs).subspan(static_cast<size_t>(begin),
                                                             static_cast<size_t>(end - begin))),
          .files = {files.begin() + begin, files.begin() + end},
          .numbers = {numbers.begin() + begin, numbers.begin() + end}};
}

const std::vector<std::filesystem::path>& RowStream::files() const { return state_->files; }
int64_t RowStream::num_bad() const { return state_->num_bad; }
int64_t RowStream::num_unlabelled() const { return state_->num_unlabelled; }

std::vector<std::string> RowStream::warnings() const {
  return float_id_warnings(state_->float_ids.found(state_->reader.decoder().columns()));
}

}  // namespace dovetail::data
