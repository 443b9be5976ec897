//! What rows are sorted by.

/// What rows are sorted by: the most first, names in their order.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Column {
    /// The Service, or the address.
    Name,
    /// Connections that are established or being opened.
    Active,
    /// Those of them in SYN_RECV: the handshake is not over.
    SynRecv,
    /// Connections in any other state.
    Inactive,
    /// New connections in a second.
    Connections,
    /// Packets in a second, both ways.
    Packets,
    /// Bytes in a second, both ways.
    Bytes,
}
