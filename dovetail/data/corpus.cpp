#include "dovetail/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/parallel.h"
#include "dovetail/data/utf8.h"

namespace dovetail {
namespace {

uint64_t hex_word(const std::string& sha256, size_t at) {
  uint64_t word = 0;
  std::from_chars(sha256.data() + at, sha256.data() + at + 16, word, 16);
  return word;
}

}  // namespace

double hashed_share(std::string_view key) {
  return std::ldexp(static_cast<double>(hex_word(sha256_of(key), 0) >> 11), -53);
}

void ProgressReport::begin(const char* stage, int64_t documents, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  now_ = {0, documents, 0, bytes, stage};
  if (callback_) callback_(now_);
}

void ProgressReport::add(int64_t documents, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  now_.documents_done += documents;
  now_.bytes_done += bytes;
  if (callback_) callback_(now_);
}

Corpus::Corpus(const DataConfig& config, bool lossless, ProgressReport& progress)
    : config_(config), lossless_(lossless), progress_(progress) {
  std::vector<InputFile> inputs = list_inputs(config);
  // A text file is one document: too large means that it need not be read.
  const auto too_large = [&](const InputFile& input) {
    return input.format == InputFormat::kText && fate_of(input.bytes, true) == Fate::kOversized;
  };
  const auto kept = std::remove_if(inputs.begin(), inputs.end(), too_large);
  oversized_ = inputs.end() - kept;
  inputs.erase(kept, inputs.end());
  hash_sources(std::move(inputs));
}

void Corpus::hash_sources(std::vector<InputFile> inputs) {
  uint64_t bytes = 0;
  for (InputFile& input : inputs) {
    bytes += input.bytes;
    sources_.push_back({std::move(input), {}, true});
  }
  const auto size = static_cast<int64_t>(sources_.size());
  progress_.begin("reading", size, bytes);
  parallel_pieces(size, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Source& source = sources_[static_cast<size_t>(i)];
      const uint64_t expected = source.input.bytes;
      if (source.input.format == InputFormat::kText) {
        const std::string text = read_file(source.input.path);
        source.sha256 = sha256_of(text);
        source.input.bytes = text.size();
        source.valid = is_valid_utf8(text);
      } else {
        source.sha256 = sha256_of_file(source.input.path);
      }
      progress_.add(1, expected);
    }
  });
}

Corpus::Digest Corpus::digest_of(const std::string& sha256) { return {hex_word(sha256, 0), hex_word(sha256, 16)}; }

Corpus::Fate Corpus::fate_of(uint64_t bytes, bool valid) const {
  if (config_.max_document_bytes > 0 && bytes > static_cast<uint64_t>(config_.max_document_bytes))
    return Fate::kOversized;
  return valid || lossless_ ? Fate::kKept : Fate::kInvalid;
}

std::vector<Corpus::Seen> Corpus::look_through(const Piece& piece) const {
  const Source& source = sources_[piece.file];
  std::vector<Seen> seen;
  if (source.input.format == InputFormat::kText) {
    if (source.input.bytes > 0) seen.push_back({digest_of(source.sha256), fate_of(source.input.bytes, source.valid)});
    return seen;
  }
  read_documents(source.input, piece, config_.text_field, [&](const Document& document) {
    // A record is text in JSON or in an Arrow string: invalid there means damaged, for every tokenizer.
    const Fate fate = document.valid ? fate_of(document.text.size(), true) : Fate::kInvalid;
    const bool compare = config_.deduplicate && fate == Fate::kKept;
    seen.push_back({compare ? digest_of(sha256_of(document.text)) : Digest{}, fate});
  });
  return seen;
}

void Corpus::scan() {
  std::vector<InputFile> inputs;
  for (const Source& source : sources_) inputs.push_back(source.input);
  pieces_ = cut_into_pieces(inputs, config_.text_field);
  std::vector<std::vector<Seen>> seen(pieces_.size());
  parallel_pieces(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) seen[static_cast<size_t>(p)] = look_through(pieces_[static_cast<size_t>(p)]);
  });
  std::unordered_set<Digest, DigestHash> known;
  fates_.resize(pieces_.size());
  for (size_t p = 0; p < pieces_.size(); ++p)
    for (Seen& document : seen[p]) {
      if (config_.deduplicate && document.fate == Fate::kKept && !known.insert(document.digest).second)
        document.fate = Fate::kDuplicate;
      documents_ += document.fate == Fate::kKept;
      duplicates_ += document.fate == Fate::kDuplicate;
      oversized_ += document.fate == Fate::kOversized;
      invalid_ += document.fate == Fate::kInvalid;
      fates_[p].push_back(document.fate);
    }
}

std::string Corpus::fingerprint(size_t piece) const {
  const Piece& where = pieces_[piece];
  const Source& source = sources_[where.file];
  std::string key = fmt::format("{}\n{}\n{} {}\n", source.input.relative, source.sha256, where.begin, where.end);
  for (const Fate fate : fates_[piece]) key += fate == Fate::kKept ? '+' : '-';
  return sha256_of(key);
}

size_t Corpus::tail_begin(std::string_view text) const {
  auto begin = static_cast<size_t>(static_cast<double>(text.size()) * (1.0 - config_.validation_fraction));
  begin = std::min(begin, text.size());
  while (begin > 0 && begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

void Corpus::read(size_t piece, const std::function<void(Split, std::string_view, const std::string&)>& visit) const {
  const std::vector<Fate>& fates = fates_[piece];
  if (std::find(fates.begin(), fates.end(), Fate::kKept) == fates.end()) return;
  const Source& source = sources_[pieces_[piece].file];
  size_t index = 0;
  read_documents(source.input, pieces_[piece], config_.text_field, [&](const Document& document) {
    user_check(index < fates.size(), "{} changed while it was read", source.input.path.string());
    if (fates[index++] != Fate::kKept) return;
    if (config_.validation_split == "document") {
      const bool held_out = hashed_share(document.identity) < config_.validation_fraction;
      return visit(held_out ? Split::kValidation : Split::kTrain, document.text, document.identity);
    }
    const size_t cut = tail_begin(document.text);
    if (cut > 0) visit(Split::kTrain, document.text.substr(0, cut), document.identity);
    if (cut < document.text.size()) visit(Split::kValidation, document.text.substr(cut), document.identity);
  });
}

}  // namespace dovetail
