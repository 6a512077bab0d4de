// The one place that includes Boost.Asio: compiled once (asio_sources.cpp), used by the files that
// touch sockets and the I/O thread's queue.  No header outside this room includes it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace percheron::server {

namespace asio = boost::asio;
using asio::ip::tcp;

}  // namespace percheron::server
