//! RFC 7047 client: monitor, transact, typed rows.
