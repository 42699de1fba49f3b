#include "dovetail/data/text/added_tokens.h"

#include <algorithm>

namespace dovetail::data {

AddedTokens::AddedTokens(const std::vector<BpeFile::Added>& tokens) {
  for (const auto& token : tokens) {
    Pass& pass = passes_[token.normalized ? 1 : 0];
    pass.ids.emplace(token.content, token.id);
    pass.begins[static_cast<unsigned char>(token.content[0])] = true;
    if (std::find(pass.lengths.begin(), pass.lengths.end(), token.content.size()) ==
        pass.lengths.end())
      pass.lengths.push_back(token.content.size());
  }
  for (Pass& pass : passes_) std::sort(pass.lengths.rbegin(), pass.lengths.rend());
}

void AddedTokens::Pass::cut(std::string_view text,
                            const std::function<void(std::string_view)>& plain,
                            const std::function<void(int32_t)>& token) const {
  size_t begin = 0;
  std::string candidate;
  for (size_t at = 0; !ids.empty() && at < text.size();) {
    const auto match = [&]() -> const std::pair<const std::string, int32_t>* {
      if (!begins[static_cast<unsigned char>(text[at])]) return nullptr;
      for (const size_t length : lengths) {
        if (length > text.size() - at) continue;
        candidate.assign(text, at, length);
        if (const auto it = ids.find(candidate); it != ids.end()) return &*it;
      }
      return nullptr;
    }();
    if (match == nullptr) {
      ++at;
      continue;
    }
    if (at > begin) plain(text.substr(begin, at - begin));
    token(match->second);
    at += match->first.size();
    begin = at;
  }
  if (begin < text.size()) plain(text.substr(begin));
}

void AddedTokens::cut(std::string_view text, const std::function<void(std::string_view)>& plain,
                      const std::function<void(int32_t)>& token) const {
  passes_[0].cut(text, [&](std::string_view rest) { passes_[1].cut(rest, plain, token); }, token);
}

}  // namespace dovetail::data
