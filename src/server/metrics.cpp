#include "server/metrics.h"

#include <algorithm>

#include "server/sse.h"

namespace percheron::server {
namespace {

// Writes one metric under both prefixes.
class Page {
  public:
    explicit Page(std::string model) {
        labels_ = "model_name=\"";
        for (const char c : model) {
            if (c == '\\' || c == '"') labels_ += '\\';
            labels_ += c == '\n' ? ' ' : c;
        }
        labels_ += '"';
    }

    void head(std::string_view name, std::string_view type, std::string_view help) {
        name_ = name;
        for (Part& part : parts_) {
            part.text += "# HELP ";
            part.text += part.prefix;
            part.text += name;
            part.text += ' ';
            part.text += help;
            part.text += "\n# TYPE ";
            part.text += part.prefix;
            part.text += name;
            part.text += ' ';
            part.text += type;
            part.text += '\n';
        }
    }

    template <class Number>
    void value(Number number, std::string_view extra_labels = {}) {
        for (Part& part : parts_) {
            part.text += part.prefix;
            part.text += name_;
            part.text += '{';
            part.text += labels_;
            if (!extra_labels.empty()) {
                part.text += ',';
                part.text += extra_labels;
            }
            part.text += "} ";
            append_number(part.text, number);
            part.text += '\n';
        }
    }

    void histogram(const Histogram& histogram) {
        for (Part& part : parts_) {
            histogram.render(part.text, std::string(part.prefix) + std::string(name_), labels_);
        }
    }

    void counter(std::string_view name, std::string_view help, std::uint64_t number) {
        head(name, "counter", help);
        value(number);
    }
    void gauge(std::string_view name, std::string_view help, double number) {
        head(name, "gauge", help);
        value(number);
    }

    std::string text() const { return parts_[0].text + parts_[1].text; }

  private:
    struct Part {
        std::string_view prefix;
        std::string text;
    };
    std::array<Part, 2> parts_{{{"vllm:", {}}, {"percheron:", {}}}};
    std::string labels_;
    std::string_view name_;
};

std::string label(std::string_view name, std::string_view value) {
    return std::string(name) + "=\"" + std::string(value) + '"';
}

}  // namespace

void Histogram::observe(double value, std::uint64_t times) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<std::size_t>(bucket)] += times;
    sum_ += value * static_cast<double>(times);
    count_ += times;
}

void Histogram::render(std::string& text, std::string_view name, std::string_view labels) const {
    const auto line = [&](std::string_view suffix, std::string_view bound) {
        text += name;
        text += suffix;
        text += '{';
        text += labels;
        if (!bound.empty()) {
            text += ",le=\"";
            text += bound;
            text += '"';
        }
        text += "} ";
    };
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
        below += counts_[i];
        std::string bound;
        append_number(bound, bounds_[i]);
        line("_bucket", bound);
        append_number(text, below);
        text += '\n';
    }
    line("_bucket", "+Inf");
    append_number(text, count_);
    text += '\n';
    line("_sum", {});
    append_number(text, sum_);
    text += '\n';
    line("_count", {});
    append_number(text, count_);
    text += '\n';
}

Metrics::Metrics() {
    for (const int status : {200, 400, 401, 404, 408, 413, 429, 500, 503})
        http_replies[status] = 0;
}

void Metrics::count_finished(std::string_view reason) {
    for (std::size_t i = 0; i < finished_reasons.size(); ++i) {
        if (finished_reasons[i] == reason) ++finished[i];
    }
}

void Metrics::count_draft(const ChoiceStatistics& statistics) {
    drafts += statistics.draft_rounds;
    draft_tokens += statistics.drafted_tokens;
    accepted_tokens += statistics.accepted_tokens;
    const auto& positions = statistics.accepted_per_position;
    for (std::size_t i = 0; i < std::min(positions.size(), draft_positions); ++i) {
        accepted_per_position[i] += positions[i];
    }
}

std::string Metrics::render(const EngineDescription& engine, const EngineStatus& status,
                            std::string_view model_name) const {
    Page page{std::string(model_name)};
    page.gauge("num_requests_running", "Choices the engine works on.", status.running);
    page.gauge("num_requests_waiting", "Choices that wait for the engine.", status.waiting);
    const double total = static_cast<double>(status.kv_tokens_total);
    const double used = total - static_cast<double>(status.kv_tokens_free);
    page.gauge("kv_cache_usage_perc", "Share of the token pool in use, 0 to 1.",
               total > 0 ? used / total : 0.0);
    page.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
                 cache_queries);
    page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", cache_hits);
    page.counter("prompt_tokens_total", "Prompt tokens of admitted requests.", prompt_tokens);
    page.counter("generation_tokens_total", "Tokens generated and used.", generation_tokens);
    page.head("request_success_total", "counter", "Choices that ended, by reason.");
    for (std::size_t i = 0; i < finished_reasons.size(); ++i) {
        page.value(finished[i], label("finished_reason", finished_reasons[i]));
    }
    page.head("time_to_first_token_seconds", "histogram", "From the request to its first token.");
    page.histogram(time_to_first_token);
    page.head("inter_token_latency_seconds", "histogram", "Time a token takes after the first.");
    page.histogram(inter_token_latency);
    page.head("e2e_request_latency_seconds", "histogram", "From the request to its end.");
    page.histogram(request_latency);
    page.head("request_queue_time_seconds", "histogram", "From the request to its admission.");
    page.histogram(queue_time);
    page.counter("spec_decode_num_drafts_total", "Rounds of speculation.", drafts);
    page.counter("spec_decode_num_draft_tokens_total", "Tokens proposed.", draft_tokens);
    page.counter("spec_decode_num_accepted_tokens_total", "Proposed tokens that were accepted.",
                 accepted_tokens);
    page.head("spec_decode_num_accepted_tokens_per_pos_total", "counter",
              "Accepted tokens by their place in the proposal.");
    for (std::size_t i = 0; i < draft_positions; ++i) {
        page.value(accepted_per_position[i], label("position", std::to_string(i)));
    }
    page.head("cache_config_info", "gauge", "Blocks times block size is the pool in tokens.");
    const std::uint64_t block = std::max<std::uint32_t>(engine.page_tokens, 1);
    page.value(std::uint64_t{1},
               label("block_size", std::to_string(block)) + "," +
                   label("num_gpu_blocks", std::to_string(engine.kv_tokens / block)));
    page.gauge("reprefill_pending_tokens", "Generated tokens not yet reusable.",
               static_cast<double>(status.reprefill_pending));
    page.gauge("prefill_tokens_per_second", "Over the last seconds.",
               status.prefill_tokens_per_second);
    page.gauge("decode_tokens_per_second", "Over the last seconds.",
               status.decode_tokens_per_second);
    page.counter("images_encoded_total", "Images that went through the vision tower.",
                 status.images_encoded);
    page.counter("images_reused_total", "Images of requests whose features were there already.",
                 status.images_reused);
    page.counter("loops_total", "Replies ended by the loop guard.", loops);
    page.counter("deadlines_total", "Replies ended by their deadline.", deadlines);
    page.counter("disconnects_total", "Requests whose client went away.", disconnects);
    page.head("http_replies_total", "counter", "Replies by status.");
    for (const auto& [code, count] : http_replies) {
        page.value(count, label("status", std::to_string(code)));
    }
    return page.text();
}

}  // namespace percheron::server
