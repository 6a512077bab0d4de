#include "server/metrics.h"

#include <algorithm>

#include "server/sse.h"

namespace percheron::server {
namespace {

// Writes each metric under every one of the prefixes, the lines of a prefix together.
class Page {
  public:
    Page(std::span<const std::string_view> prefixes, std::string_view model) {
        for (const std::string_view prefix : prefixes)
            parts_.push_back({prefix, {}});
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

    std::string text() const {
        std::string text;
        for (const Part& part : parts_)
            text += part.text;
        return text;
    }

  private:
    struct Part {
        std::string_view prefix;
        std::string text;
    };
    std::vector<Part> parts_;
    std::string labels_;
    std::string_view name_;
};

std::string label(std::string_view name, std::string_view value) {
    return std::string(name) + "=\"" + std::string(value) + '"';
}

double share(double part, double whole) {
    return whole > 0 ? part / whole : 0.0;
}

void write_load(Page& page, const MetricsMoment& moment) {
    const EngineStatus& status = moment.status;
    page.gauge("num_requests_running", "Choices the engine works on.", status.running);
    page.gauge("num_requests_waiting", "Choices that wait for the engine.", status.waiting);
    page.gauge("kv_cache_usage_perc", "Share of the token pool in use, 0 to 1.",
               share(static_cast<double>(status.kv_tokens_total - status.kv_tokens_free),
                     static_cast<double>(status.kv_tokens_total)));
    page.head("cache_config_info", "gauge", "Blocks times block size is the pool in tokens.");
    const std::uint64_t block = std::max<std::uint32_t>(moment.engine.page_tokens, 1);
    page.value(std::uint64_t{1},
               label("block_size", std::to_string(block)) + "," +
                   label("num_gpu_blocks", std::to_string(moment.engine.kv_tokens / block)));
}

void write_tokens(Page& page, const Metrics& metrics) {
    page.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
                 metrics.cache_queries);
    page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
                 metrics.cache_hits);
    page.counter("prompt_tokens_total", "Prompt tokens of admitted requests.",
                 metrics.prompt_tokens);
    page.counter("generation_tokens_total", "Tokens generated and used.",
                 metrics.generation_tokens);
    page.head("request_success_total", "counter", "Choices that ended, by reason.");
    for (std::size_t i = 0; i < Metrics::finished_reasons.size(); ++i) {
        page.value(metrics.finished[i], label("finished_reason", Metrics::finished_reasons[i]));
    }
}

void write_latencies(Page& page, const Metrics& metrics) {
    page.head("time_to_first_token_seconds", "histogram", "From the request to its first token.");
    page.histogram(metrics.time_to_first_token);
    page.head("inter_token_latency_seconds", "histogram", "Time a token takes after the first.");
    page.histogram(metrics.inter_token_latency);
    page.head("e2e_request_latency_seconds", "histogram", "From the request to its end.");
    page.histogram(metrics.request_latency);
    page.head("request_queue_time_seconds", "histogram",
              "From the engine's taking a request to its admission.");
    page.histogram(metrics.queue_time);
}

void write_speculation(Page& page, const Metrics& metrics) {
    page.counter("spec_decode_num_drafts_total", "Rounds of speculation.", metrics.drafts);
    page.counter("spec_decode_num_draft_tokens_total", "Tokens proposed.", metrics.draft_tokens);
    page.counter("spec_decode_num_accepted_tokens_total", "Proposed tokens that were accepted.",
                 metrics.accepted_tokens);
    page.head("spec_decode_num_accepted_tokens_per_pos_total", "counter",
              "Accepted tokens by their place in the proposal.");
    for (std::size_t i = 0; i < Metrics::draft_positions; ++i) {
        page.value(metrics.accepted_per_position[i], label("position", std::to_string(i)));
    }
}

// An engine of this process counts as rank 0, so that the names are always there.
void write_ranks(Page& page, const EngineStatus& status) {
    std::vector<RankStatus> ranks = status.ranks;
    if (ranks.empty()) ranks.emplace_back().up = status.alive;
    const auto label = [](const RankStatus& rank) {
        return "rank=\"" + std::to_string(rank.rank) + "\"";
    };
    page.head("rank_up", "gauge", "1: the process that computes takes requests.");
    for (const RankStatus& rank : ranks)
        page.value(std::uint64_t{rank.up}, label(rank));
    page.head("rank_restarts_total", "counter", "Times that process was started again.");
    for (const RankStatus& rank : ranks)
        page.value(rank.restarts, label(rank));
}

// What the engine says of itself beyond what others have names for.
void write_engine(Page& page, const EngineStatus& status) {
    page.gauge("prefill_tokens_per_second", "Over the last seconds.",
               status.prefill_tokens_per_second);
    page.gauge("decode_tokens_per_second", "Over the last seconds.",
               status.decode_tokens_per_second);
    page.gauge("kv_tokens_total", "Tokens the pool holds.",
               static_cast<double>(status.kv_tokens_total));
    page.gauge("kv_tokens_used", "Of those, in use.",
               static_cast<double>(status.kv_tokens_total - status.kv_tokens_free));
    page.gauge("checkpoints", "Kept states that a prompt may go on from.",
               static_cast<double>(status.checkpoints));
    page.gauge("reprefill_pending_tokens", "Generated tokens not yet reusable.",
               static_cast<double>(status.reprefill_pending));
    page.counter("steps_total", "Steps of the engine.", status.steps);
    page.counter("preemptions_total", "Running choices that gave up their pages.",
                 status.preemptions);
    page.counter("grammar_masks_late_total",
                 "Steps a choice sat out because its grammar's mask was not ready.",
                 status.late_masks);
    const PrefixDiskStatus& disk = status.prefix_disk;
    page.gauge("prefix_disk_entries", "States on disk that a prompt may go on from.",
               static_cast<double>(disk.entries));
    page.gauge("prefix_disk_bytes", "Of the prefix cache's files.",
               static_cast<double>(disk.bytes));
    page.gauge("prefix_disk_limit_bytes", "That its files may have.",
               static_cast<double>(disk.limit_bytes));
    page.gauge("prefix_disk_queued_bytes", "Copies that wait to be written.",
               static_cast<double>(disk.queued_bytes));
    page.gauge("prefix_disk_paused", "1: a write failed, another is tried after a while.",
               disk.paused ? 1 : 0);
    page.counter("prefix_disk_written_bytes_total", "Pages and states written.",
                 disk.bytes_written);
    page.counter("prefix_disk_restored_bytes_total", "Pages and states read back.",
                 disk.bytes_restored);
    page.counter("prefix_disk_restores_total", "Prompts that found more on disk than in memory.",
                 disk.restores);
    page.counter("prefix_disk_evictions_total", "Files given up for others.", disk.evictions);
    page.counter("prefix_disk_refused_total",
                 "Files that are damaged, or of another model, program or version.", disk.refused);
    page.counter("prefix_disk_dropped_total",
                 "Pages and states not written: the disk fell behind or paused.", disk.dropped);
    page.counter("images_encoded_total", "Images that went through the vision tower.",
                 status.images_encoded);
    page.counter("images_reused_total", "Images of requests whose features were there already.",
                 status.images_reused);
}

void write_server(Page& page, const Metrics& metrics, const MetricsMoment& moment) {
    page.gauge("draft_acceptance", "Share of proposed tokens accepted since the start, 0 to 1.",
               share(static_cast<double>(metrics.accepted_tokens),
                     static_cast<double>(metrics.draft_tokens)));
    page.counter("loops_total", "Replies ended by the loop guard.", metrics.loops);
    page.counter("deadlines_total", "Replies ended by their deadline.", metrics.deadlines);
    page.counter("disconnects_total", "Requests whose client went away.", metrics.disconnects);
    page.head("http_replies_total", "counter", "Replies by status.");
    for (const auto& [code, count] : metrics.http_replies) {
        page.value(count, label("status", std::to_string(code)));
    }
    page.gauge("uptime_seconds", "Since the server was started.", moment.uptime_seconds);
    page.gauge("resident_memory_bytes", "Memory of the server's process, mapped files included.",
               static_cast<double>(moment.resident_bytes));
    page.gauge("request_bytes", "Of bodies being read and of prompts and images under way.",
               static_cast<double>(moment.request_bytes));
    page.gauge("request_bytes_limit", "Beyond which large requests are turned away.",
               static_cast<double>(moment.request_bytes_limit));
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

void Metrics::count_round(std::uint32_t drafted, std::uint32_t accepted) {
    ++drafts;
    draft_tokens += drafted;
    accepted_tokens += accepted;
    for (std::size_t i = 0; i < std::min<std::size_t>(accepted, draft_positions); ++i)
        ++accepted_per_position[i];
}

void Metrics::count_draft(const ChoiceStatistics& now, const ChoiceStatistics& before) {
    drafts += now.draft_rounds - before.draft_rounds;
    draft_tokens += now.drafted_tokens - before.drafted_tokens;
    accepted_tokens += now.accepted_tokens - before.accepted_tokens;
    const auto& positions = now.accepted_per_position;
    const auto& earlier = before.accepted_per_position;
    for (std::size_t i = 0; i < std::min(positions.size(), draft_positions); ++i) {
        accepted_per_position[i] += positions[i] - (i < earlier.size() ? earlier[i] : 0);
    }
}

std::string Metrics::render(const MetricsMoment& moment) const {
    constexpr std::array<std::string_view, 2> known{"vllm:", "percheron:"};
    Page standard(known, moment.model_name);
    write_load(standard, moment);
    write_tokens(standard, *this);
    write_latencies(standard, *this);
    write_speculation(standard, *this);
    Page own(std::span<const std::string_view>(known).last(1), moment.model_name);
    write_engine(own, moment.status);
    write_ranks(own, moment.status);
    write_server(own, *this, moment);
    return standard.text() + own.text();
}

}  // namespace percheron::server
