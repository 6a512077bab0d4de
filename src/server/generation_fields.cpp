#include "server/generation_fields.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "server/output_fields.h"

namespace percheron::server {
namespace {

constexpr std::int64_t most_choices = 64;
constexpr std::size_t most_stops = 64;
constexpr std::size_t longest_stop = 1024;
constexpr std::size_t most_biases = 1024;
constexpr std::int64_t most_tokens = std::numeric_limits<std::uint32_t>::max();

// All 64 bits are a seed; clients that send negative ones mean the same bits.
std::optional<std::uint64_t> read_seed(FieldReader& fields) {
    const Json* const seed = fields.find("seed");
    if (seed == nullptr) return std::nullopt;
    if (seed->is_number_unsigned()) return seed->get<std::uint64_t>();
    if (seed->is_number_integer()) return static_cast<std::uint64_t>(seed->get<std::int64_t>());
    // Some clients know only one kind of number.
    constexpr double exact = 9007199254740992.0;
    const double real = seed->is_number_float() ? seed->get<double>() : 0.5;
    if (real == std::floor(real) && std::abs(real) < exact) {
        return static_cast<std::uint64_t>(static_cast<std::int64_t>(real));
    }
    fields.fail(invalid_value(fields.path_of("seed"),
                              fields.path_of("seed") + " must be a whole number from " +
                                  std::to_string(std::numeric_limits<std::int64_t>::min()) +
                                  " to " +
                                  std::to_string(std::numeric_limits<std::uint64_t>::max())));
    return std::nullopt;
}

void read_sampling(FieldReader& fields, const GenerationDefaults& defaults,
                   std::uint32_t vocabulary, SamplingParameters& sampling) {
    const auto set = [&](float& target, const char* name, double least, double most,
                         float otherwise) {
        target = static_cast<float>(fields.number(name, least, most).value_or(otherwise));
    };
    set(sampling.temperature, "temperature", 0, 2, defaults.temperature);
    set(sampling.top_p, "top_p", 1e-6, 1, defaults.top_p);
    set(sampling.min_p, "min_p", 0, 0.999999, defaults.min_p);
    set(sampling.repetition_penalty, "repetition_penalty", 0.01, 10, defaults.repetition_penalty);
    set(sampling.presence_penalty, "presence_penalty", -2, 2, 0);
    set(sampling.frequency_penalty, "frequency_penalty", -2, 2, 0);
    const auto top_k = fields.integer("top_k", -1, std::numeric_limits<int>::max());
    sampling.top_k = static_cast<int>(std::max<std::int64_t>(top_k.value_or(defaults.top_k), 0));
    sampling.seed = read_seed(fields);

    const Json* bias = fields.find("logit_bias");
    if (bias == nullptr) return;
    const std::string wrong = fields.path_of("logit_bias") + " must map at most " +
                              std::to_string(most_biases) +
                              " token ids to numbers from -100 to 100";
    if (!bias->is_object() || bias->size() > most_biases) {
        fields.fail(invalid_value(fields.path_of("logit_bias"), wrong));
        return;
    }
    for (const auto& [key, value] : bias->items()) {
        std::uint32_t id = 0;
        const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
        const bool whole = parsed.ec == std::errc{} && parsed.ptr == key.data() + key.size();
        const double amount = value.is_number() ? value.get<double>() : 1000;
        if (!whole || id >= vocabulary || amount < -100 || amount > 100) {
            fields.fail(invalid_value(fields.path_of("logit_bias"), wrong));
            return;
        }
        sampling.logit_bias.emplace_back(TokenId{static_cast<std::int32_t>(id)},
                                         static_cast<float>(amount));
    }
}

void read_stops(FieldReader& fields, std::uint32_t vocabulary, GenerationFields& result) {
    const auto wrong = [&](const char* name, const std::string& what) {
        fields.fail(invalid_value(fields.path_of(name), fields.path_of(name) + what));
    };
    if (const Json* stop = fields.find("stop")) {
        const std::string what = " must be a string or a list of at most " +
                                 std::to_string(most_stops) + " strings of at most " +
                                 std::to_string(longest_stop) + " bytes";
        const Json list = stop->is_array() ? *stop : Json::array({*stop});
        if (list.size() > most_stops) wrong("stop", what);
        for (const Json& one : list) {
            if (!one.is_string() || one.get_ref<const std::string&>().size() > longest_stop) {
                wrong("stop", what);
                break;
            }
            if (!one.get_ref<const std::string&>().empty()) {
                result.stop_strings.push_back(one.get<std::string>());
            }
        }
    }
    if (const Json* ids = fields.find("stop_token_ids")) {
        const std::string what = " must be a list of at most " + std::to_string(most_stops) +
                                 " token ids below " + std::to_string(vocabulary);
        if (!ids->is_array() || ids->size() > most_stops) {
            wrong("stop_token_ids", what);
            return;
        }
        for (const Json& id : *ids) {
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= vocabulary) {
                wrong("stop_token_ids", what);
                return;
            }
            result.request.extra_stop_tokens.push_back(TokenId{id.get<std::int32_t>()});
        }
    }
}

void read_limits(FieldReader& fields, const GenerationDefaults& defaults,
                 GenerationRequest& request) {
    const auto old_name = fields.integer("max_tokens", 1, most_tokens);
    const auto new_name = fields.integer("max_completion_tokens", 1, most_tokens);
    if (const auto limit = new_name ? new_name : old_name) {
        request.max_tokens = static_cast<std::uint32_t>(*limit);
    }
    request.min_tokens =
        static_cast<std::uint32_t>(fields.integer("min_tokens", 0, most_tokens).value_or(0));
    if (request.max_tokens && request.min_tokens > *request.max_tokens) {
        fields.fail(invalid_value(fields.path_of("min_tokens"),
                                  "min_tokens must not be larger than max_tokens"));
    }
    request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
    request.choices = static_cast<std::uint32_t>(fields.integer("n", 1, most_choices).value_or(1));
    if (const auto budget = fields.integer("thinking_budget", 0, most_tokens)) {
        request.thinking_budget = static_cast<std::uint32_t>(*budget);
    }
    request.loop_guard = fields.boolean("loop_guard");
    request.draft = fields.boolean("draft").value_or(true);
    request.use_cache = fields.boolean("cache_prompt").value_or(true);
    request.cache_salt = fields.text("cache_salt", 256).value_or("");
    request.priority = static_cast<int>(fields.integer("priority", -1000, 1000).value_or(0));

    std::optional<double> deadline = fields.number("deadline_s", 0.001, 1e7);
    if (!deadline && defaults.deadline) deadline = static_cast<double>(defaults.deadline->count());
    if (deadline) {
        request.deadline =
            std::chrono::steady_clock::now() +
            std::chrono::microseconds(static_cast<std::int64_t>(*deadline * 1'000'000));
    }
}

}  // namespace

GenerationFields read_generation_fields(FieldReader& fields, const GenerationDefaults& defaults,
                                        std::uint32_t vocabulary) {
    GenerationFields result;
    result.model = fields.text("model", 1024).value_or("");
    read_sampling(fields, defaults, vocabulary, result.request.sampling);
    read_stops(fields, vocabulary, result);
    read_limits(fields, defaults, result.request);
    result.output = read_output_format(fields);
    result.stream = fields.boolean("stream").value_or(false);
    result.return_token_ids = fields.boolean("return_token_ids").value_or(false);
    result.request.report_progress = fields.boolean("return_progress").value_or(false);
    if (result.request.report_progress && !result.stream) {
        fields.fail(invalid_value(fields.path_of("return_progress"),
                                  "return_progress needs a stream; set stream or leave it out"));
    }
    if (const Json* options = fields.find("stream_options")) {
        if (!options->is_object()) {
            fields.fail(invalid_value(fields.path_of("stream_options"),
                                      "stream_options must be an object"));
        } else {
            FieldReader inner(*options, fields.path_of("stream_options."));
            result.include_usage = inner.boolean("include_usage").value_or(false);
            result.continuous_usage =
                inner.boolean("continuous_usage_stats").value_or(false) && result.include_usage;
            if (inner.error()) fields.fail(*inner.error());
        }
    }
    return result;
}

void refuse_foreign_fields(FieldReader& fields, std::initializer_list<const char*> more) {
    const auto refuse = [&](const char* name, std::string_view why) {
        fields.fail(unsupported_parameter(fields.path_of(name),
                                          fields.path_of(name) + " " + std::string(why)));
    };
    for (const char* name : {"functions", "function_call", "audio", "web_search_options",
                             "prompt_logprobs", "length_penalty", "bad_words", "logits_processors",
                             "allowed_token_ids", "documents", "chat_template"}) {
        const Json* value = fields.find(name);
        if (value != nullptr) refuse(name, "is not supported; leave it out");
    }
    for (const char* name : more) {
        const Json* value = fields.find(name);
        if (value != nullptr && *value != false)
            refuse(name, "is not supported here; leave it out");
    }
    for (const char* name : {"use_beam_search", "include_stop_str_in_output"}) {
        if (fields.boolean(name).value_or(false)) refuse(name, "is not supported; leave it out");
    }
    if (const Json* modalities = fields.find("modalities")) {
        if (*modalities != Json::array({"text"})) {
            refuse("modalities", "can only be [\"text\"]");
        }
    }
}

}  // namespace percheron::server
