//! The numbers of the family, from include/uapi/linux/ip_vs.h, without the `IPVS_` prefixes.

/// `GENL_NAME`.
pub(super) const FAMILY: &str = "IPVS";
/// `GENL_VERSION`.
pub(super) const VERSION: u8 = 1;

/// `AF_INET` of include/linux/socket.h.
pub(super) const AF_INET: u16 = 2;
/// `AF_INET6` of include/linux/socket.h.
pub(super) const AF_INET6: u16 = 10;

/// `IP_VS_SVC_F_HASHED`: the kernel's own mark that a virtual server is in its table.
pub(super) const HASHED: u32 = 0x2;
/// `IP_VS_CONN_F_FWD_MASK`: the bits of a forwarding method; the others are a connection's.
pub(super) const FORWARDING_MASK: u32 = 0x7;

/// `CMD_*`.
pub(super) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DEL_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DEST: u8 = 5;
    pub(crate) const SET_DEST: u8 = 6;
    pub(crate) const DEL_DEST: u8 = 7;
    pub(crate) const GET_DEST: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
    pub(crate) const GET_INFO: u8 = 15;
    pub(crate) const ZERO: u8 = 16;
    pub(crate) const FLUSH: u8 = 17;
}

/// `CMD_ATTR_*`: the attributes of a message.
pub(super) mod message {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DEST: u16 = 2;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// `SVC_ATTR_*`: the attributes of a virtual server.
pub(super) mod service {
    pub(crate) const AF: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const FWMARK: u16 = 5;
    pub(crate) const SCHED_NAME: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const PE_NAME: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
}

/// `DEST_ATTR_*`: the attributes of a real server.
pub(super) mod dest {
    pub(crate) const ADDR: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FWD_METHOD: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const U_THRESH: u16 = 5;
    pub(crate) const L_THRESH: u16 = 6;
    pub(crate) const ACTIVE_CONNS: u16 = 7;
    pub(crate) const INACT_CONNS: u16 = 8;
    pub(crate) const PERSIST_CONNS: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const ADDR_FAMILY: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
    pub(crate) const TUN_TYPE: u16 = 13;
    pub(crate) const TUN_PORT: u16 = 14;
    pub(crate) const TUN_FLAGS: u16 = 15;
}

/// `STATS_ATTR_*`: the counters inside STATS and STATS64.
pub(super) mod stats {
    pub(crate) const CONNS: u16 = 1;
    pub(crate) const INPKTS: u16 = 2;
    pub(crate) const OUTPKTS: u16 = 3;
    pub(crate) const INBYTES: u16 = 4;
    pub(crate) const OUTBYTES: u16 = 5;
    pub(crate) const CPS: u16 = 6;
    pub(crate) const INPPS: u16 = 7;
    pub(crate) const OUTPPS: u16 = 8;
    pub(crate) const INBPS: u16 = 9;
    pub(crate) const OUTBPS: u16 = 10;
}

/// `INFO_ATTR_*`: the attributes of the answer to GET_INFO.
pub(super) mod info {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const CONN_TAB_SIZE: u16 = 2;
}
