#include "replay/replay_script.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>
#include <pcre2.h>

namespace percheron {
namespace {

using Json = nlohmann::json;

// A compiled regular expression, searched with bounded effort.
class Regex {
  public:
    static Result<Regex> compile(const std::string& pattern) {
        int code = 0;
        PCRE2_SIZE offset = 0;
        pcre2_code* compiled =
            pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_NO_UTF_CHECK, &code, &offset, nullptr);
        if (compiled == nullptr) {
            PCRE2_UCHAR text[200];
            pcre2_get_error_message(code, text, sizeof text);
            return Error(ErrorCode::corrupt, "`match` is not a regular expression: " +
                                                 std::string(reinterpret_cast<char*>(text)) +
                                                 " at offset " + std::to_string(offset));
        }
        return Regex(compiled);
    }

    bool found_in(std::string_view text) const {
        using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
        using Context = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;
        const MatchData data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
        const Context context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
        pcre2_set_match_limit(context.get(), 1'000'000);
        return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                           PCRE2_NO_UTF_CHECK, data.get(), context.get()) >= 0;
    }

  private:
    explicit Regex(pcre2_code* code) : code_(code, &pcre2_code_free) {}
    std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code_;
};

struct MatchedReply {
    Regex pattern;
    std::shared_ptr<const ReplayReply> reply;
};

Error broken(std::string message) {
    return Error(ErrorCode::corrupt, std::move(message));
}

// Absent and null are the same.
const Json* field(const Json& line, const char* name) {
    const auto found = line.find(name);
    return found == line.end() || found->is_null() ? nullptr : &*found;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

class StepReader {
  public:
    StepReader(const Tokenizer& tokenizer, std::uint32_t vocabulary)
        : tokenizer_(tokenizer), vocabulary_(vocabulary) {}

    Status append(const Json& element, std::vector<TokenId>& tokens) const {
        if (!element.is_array()) return append_piece(element, tokens);
        for (const Json& piece : element)
            PERCHERON_TRY(append_piece(piece, tokens));
        return {};
    }

  private:
    Status append_piece(const Json& piece, std::vector<TokenId>& tokens) const {
        if (piece.is_string()) {
            extend(tokens, tokenizer_.encode_trusted(piece.get_ref<const std::string&>()));
            return {};
        }
        if (piece.is_number_integer()) {
            const bool negative = !piece.is_number_unsigned();
            if (negative || piece.get<std::uint64_t>() >= vocabulary_) {
                return broken("token id " + piece.dump() + " is not in the vocabulary of " +
                              std::to_string(vocabulary_));
            }
            tokens.push_back(TokenId{piece.get<std::int32_t>()});
            return {};
        }
        if (piece.is_object() && piece.size() == 1) {
            const auto only = piece.begin();
            const std::string& key = only.key();
            const Json& value = only.value();
            if (key == "plain" && value.is_string()) {
                extend(tokens, tokenizer_.encode(value.get_ref<const std::string&>()));
                return {};
            }
            if (key == "hex" && value.is_string()) {
                return append_bytes(value.get_ref<const std::string&>(), tokens);
            }
        }
        return broken(
            "a step is a string, a list of ids, {\"plain\": text}, {\"hex\": digits} or "
            "a list of these, not " +
            piece.dump().substr(0, 80));
    }

    Status append_bytes(const std::string& digits, std::vector<TokenId>& tokens) const {
        if (digits.size() % 2 != 0) return broken("`hex` needs two digits a byte");
        for (std::size_t i = 0; i < digits.size(); i += 2) {
            const int high = hex_digit(digits[i]);
            const int low = hex_digit(digits[i + 1]);
            if (high < 0 || low < 0) return broken("`hex` holds something else than hex digits");
            tokens.push_back(tokenizer_.byte_token(static_cast<std::uint8_t>(high * 16 + low)));
        }
        return {};
    }

    static void extend(std::vector<TokenId>& tokens, const std::vector<TokenId>& more) {
        tokens.insert(tokens.end(), more.begin(), more.end());
    }

    const Tokenizer& tokenizer_;
    std::uint32_t vocabulary_;
};

Result<std::chrono::microseconds> milliseconds(const Json& line, const char* name) {
    const Json* value = field(line, name);
    if (value == nullptr) return std::chrono::microseconds(0);
    if (!value->is_number() || value->get<double>() < 0 || value->get<double>() > 1e9) {
        return broken(std::string("`") + name + "` is a number of milliseconds, at least 0");
    }
    return std::chrono::microseconds(static_cast<std::int64_t>(value->get<double>() * 1000));
}

Result<ReplayReply> read_reply(const Json& line, const StepReader& reader) {
    ReplayReply reply;
    const Json* steps = field(line, "steps");
    if (steps == nullptr || !steps->is_array()) return broken("`steps` is missing or not a list");
    for (const Json& element : *steps) {
        PERCHERON_TRY(reader.append(element, reply.tokens));
        reply.step_ends.push_back(static_cast<std::uint32_t>(reply.tokens.size()));
    }
    if (const Json* finish = field(line, "finish")) {
        const std::string name = finish->is_string() ? finish->get<std::string>() : "";
        if (name == "stop") {
            reply.end = ReplayReply::End::stop;
        } else if (name == "length") {
            reply.end = ReplayReply::End::length;
        } else if (name == "hang") {
            reply.end = ReplayReply::End::hang;
        } else if (name == "error") {
            reply.end = ReplayReply::End::error;
        } else {
            return broken("`finish` is \"stop\", \"length\", \"hang\" or \"error\"");
        }
    }
    PERCHERON_ASSIGN(reply.prefill, milliseconds(line, "prefill_ms"));
    PERCHERON_ASSIGN(reply.delay, milliseconds(line, "delay_ms"));
    if (const Json* draft = field(line, "draft")) {
        const auto count = [&](const char* name, std::uint32_t& target) {
            const auto found = draft->is_object() ? draft->find(name) : draft->end();
            if (!draft->is_object() || found == draft->end() || !found->is_number_unsigned() ||
                found->get<std::uint64_t>() > 1000) {
                return false;
            }
            target = found->get<std::uint32_t>();
            return true;
        };
        if (!count("drafted", reply.drafted_a_step) || !count("accepted", reply.accepted_a_step) ||
            reply.accepted_a_step > reply.drafted_a_step) {
            return broken("`draft` is {\"drafted\": n, \"accepted\": m} with m at most n");
        }
        reply.has_draft = true;
    }
    if (const Json* logprob = field(line, "logprob")) {
        if (!logprob->is_number() || logprob->get<double>() > 0) {
            return broken("`logprob` is a number, at most 0");
        }
        reply.logprob = logprob->get<float>();
    }
    return reply;
}

}  // namespace

struct ReplayScript::Content {
    std::mutex mutex;
    std::vector<MatchedReply> matched;
    std::vector<std::shared_ptr<const ReplayReply>> in_order;
    std::size_t next = 0;
};

ReplayScript::ReplayScript(std::unique_ptr<Content> content) : content_(std::move(content)) {}
ReplayScript::ReplayScript(ReplayScript&&) noexcept = default;
ReplayScript& ReplayScript::operator=(ReplayScript&&) noexcept = default;
ReplayScript::~ReplayScript() = default;

Result<ReplayScript> ReplayScript::load(const std::filesystem::path& file,
                                        const Tokenizer& tokenizer, std::uint32_t vocabulary) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream || std::filesystem::is_directory(file)) {
        return Error(ErrorCode::io, "cannot read the replay file " + file.string());
    }
    std::stringstream text;
    text << stream.rdbuf();
    auto script = parse(text.view(), tokenizer, vocabulary);
    if (!script.ok()) return script.error().in(file.string());
    return script;
}

Result<ReplayScript> ReplayScript::parse(std::string_view text, const Tokenizer& tokenizer,
                                         std::uint32_t vocabulary) {
    auto content = std::make_unique<Content>();
    const StepReader reader(tokenizer, vocabulary);
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = text.find('\n');
        std::string_view line = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string place = "line " + std::to_string(number);
        const Json json = Json::parse(line, nullptr, false);
        if (!json.is_object()) return broken("not a JSON object").in(place);
        auto reply = read_reply(json, reader);
        if (!reply.ok()) return reply.error().in(place);
        auto shared = std::make_shared<const ReplayReply>(std::move(*reply));
        if (const Json* match = field(json, "match")) {
            if (!match->is_string()) return broken("`match` is a string").in(place);
            auto pattern = Regex::compile(match->get_ref<const std::string&>());
            if (!pattern.ok()) return pattern.error().in(place);
            content->matched.push_back({std::move(*pattern), std::move(shared)});
        } else {
            content->in_order.push_back(std::move(shared));
        }
    }
    return ReplayScript(std::move(content));
}

std::vector<std::shared_ptr<const ReplayReply>> ReplayScript::take(std::string_view last_message,
                                                                   std::uint32_t choices) {
    std::vector<std::shared_ptr<const ReplayReply>> replies;
    for (const MatchedReply& candidate : content_->matched) {
        if (candidate.pattern.found_in(last_message)) {
            replies.assign(choices, candidate.reply);
            return replies;
        }
    }
    const std::lock_guard lock(content_->mutex);
    const std::size_t left = content_->in_order.size() - content_->next;
    if (left < choices) return replies;
    for (std::uint32_t i = 0; i < choices; ++i) {
        replies.push_back(content_->in_order[content_->next++]);
    }
    return replies;
}

std::size_t ReplayScript::size() const {
    return content_->matched.size() + content_->in_order.size();
}

}  // namespace percheron
