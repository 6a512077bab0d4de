#include "parallel/control_link.h"

#include <array>
#include <cerrno>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace percheron::parallel {
namespace {

// Above what a body limit lets in as images: a length beyond it is no length.
constexpr std::uint32_t longest_frame = 1u << 30;

}  // namespace

Descriptor::~Descriptor() {
    if (number_ >= 0) ::close(number_);
}

Result<std::optional<FrameReader::Frame>> FrameReader::next() {
    constexpr std::size_t head = sizeof(std::uint32_t);
    if (bytes_.size() - at_ >= head) {
        std::uint32_t length = 0;
        std::memcpy(&length, bytes_.data() + at_, head);
        if (length == 0 || length > longest_frame) {
            return Error(ErrorCode::corrupt, "a message of " + std::to_string(length) + " bytes");
        }
        if (bytes_.size() - at_ - head >= length) {
            const std::span<const std::uint8_t> frame(bytes_.data() + at_ + head, length);
            at_ += head + length;
            if (frame[0] > static_cast<std::uint8_t>(MessageKind::cancel)) {
                return Error(ErrorCode::corrupt, "a message of no known kind");
            }
            return std::optional<Frame>({static_cast<MessageKind>(frame[0]), frame.subspan(1)});
        }
    }
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ = 0;
    return std::optional<Frame>();
}

ControlLink::ControlLink(Descriptor end)
    : end_(std::move(end)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void ControlLink::send(const Message& frame) {
    bool is_left = false;
    {
        const std::lock_guard lock(mutex_);
        pending_.insert(pending_.end(), frame.begin(), frame.end());
        is_left = !send_pending();
    }
    if (is_left) wake();
}

void ControlLink::wake() {
    const std::uint64_t one = 1;
    // Fails only where it is awake already.
    [[maybe_unused]] const auto written = ::write(wake_.number(), &one, sizeof one);
}

// Under mutex_.  True: nothing is left.
bool ControlLink::send_pending() {
    while (sent_ < pending_.size()) {
        const ssize_t count = ::send(end_.number(), pending_.data() + sent_,
                                     pending_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
        if (count < 0) break;  // nobody reads any more; whoever waits will see it
        sent_ += static_cast<std::size_t>(count);
    }
    pending_.clear();
    sent_ = 0;
    return true;
}

bool ControlLink::receive() {
    std::array<std::uint8_t, 1 << 16> piece;
    const ssize_t count = ::recv(end_.number(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (count > 0) reader_.add(std::span(piece).first(static_cast<std::size_t>(count)));
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

bool ControlLink::wait(std::chrono::milliseconds most, int beside) {
    short wanted = POLLIN;
    {
        const std::lock_guard lock(mutex_);
        if (!pending_.empty()) wanted |= POLLOUT;
    }
    std::array<pollfd, 3> waiting{
        {{end_.number(), wanted, 0}, {wake_.number(), POLLIN, 0}, {beside, POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(most.count())) <= 0) return true;
    if (waiting[1].revents != 0) {
        std::uint64_t calls = 0;
        [[maybe_unused]] const auto read = ::read(wake_.number(), &calls, sizeof calls);
    }
    if ((waiting[0].revents & POLLOUT) != 0) {
        const std::lock_guard lock(mutex_);
        send_pending();
    }
    return (waiting[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0 || receive();
}

void ControlLink::close() {
    ::shutdown(end_.number(), SHUT_RDWR);
}

void ControlLink::flush() {
    for (bool is_left = true; is_left;) {
        pollfd room{end_.number(), POLLOUT, 0};
        if (::poll(&room, 1, -1) < 0 && errno != EINTR) return;
        if ((room.revents & (POLLERR | POLLHUP)) != 0) return;
        const std::lock_guard lock(mutex_);
        is_left = !send_pending();
    }
}

}  // namespace percheron::parallel
