//! OpenFlow wire formats and the version-neutral model behind them.
